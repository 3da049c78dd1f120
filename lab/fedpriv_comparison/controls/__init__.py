"""What the papers compare PE-SGD with, as methods for `fedpriv compare`. None of them is advised.

    pe-sgd-products   noise on the inner products with the set's gradients, not the coefficients
    pe-sgd-gradient   noise on the whole gradient, which is projected after the release
    pe-sgd-residual   noise on the part in the span and on the rest of the gradient, both released

No machine has them installed: `fedpriv compare` brings them to its own processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedpriv.errors import ProtocolError
from fedpriv.plugins import BROUGHT, METHODS, SERVER_HALVES, load

if TYPE_CHECKING:
    from fedpriv.methods.pe_sgd.config import ProjectionSection
    from fedpriv.private_training.method import Records, SiteMethod
    from fedpriv.protocol import Proposal


class _Control:
    """What the three have in common: a set as of PE-SGD, and no local steps."""

    needs_set = True

    def checked(self, proposal: Proposal) -> ProjectionSection:
        """What a proposal says of the set.

        Raises:
            ProtocolError: as of PE-SGD, or it asks for local steps.
        """
        from fedpriv.methods.pe_sgd.site_half import projection_of

        if proposal.local is not None:
            raise ProtocolError(f"local: {proposal.method} has one step a round.")
        return projection_of(proposal)


class NoiseOnTheProducts(_Control):
    """As `fedpriv.private_training.method.Method`."""

    def at_site(self, proposal: Proposal, records: Records = ()) -> SiteMethod:
        """See `products`."""
        from fedpriv_comparison.controls.products import Products

        return Products(self.checked(proposal), records)


class NoiseOnTheGradient(_Control):
    """As `fedpriv.private_training.method.Method`."""

    def at_site(self, proposal: Proposal, records: Records = ()) -> SiteMethod:
        """See `gradient`."""
        from fedpriv_comparison.controls.gradient import Gradient

        return Gradient(self.checked(proposal), records)


class NoiseOnTheResidual(_Control):
    """As `fedpriv.private_training.method.Method`."""

    def at_site(self, proposal: Proposal, records: Records = ()) -> SiteMethod:
        """See `residual`."""
        from fedpriv_comparison.controls.residual import Residual

        return Residual(self.checked(proposal), records)


def bring_controls() -> None:
    """Make the controls known in this process."""
    from fedpriv_comparison.controls.gradient import GradientServer
    from fedpriv_comparison.controls.products import ProductsServer
    from fedpriv_comparison.controls.residual import ResidualServer

    for name, method, half in (
        ("pe-sgd-gradient", NoiseOnTheGradient, GradientServer),
        ("pe-sgd-products", NoiseOnTheProducts, ProductsServer),
        ("pe-sgd-residual", NoiseOnTheResidual, ResidualServer),
    ):
        BROUGHT[METHODS, name] = method
        BROUGHT[SERVER_HALVES, name] = half


@contextmanager
def controls_known() -> Iterator[None]:
    """Make the controls known in this process, for the time of a block or of a function."""
    bring_controls()
    try:
        yield
    finally:
        BROUGHT.clear()
        load.cache_clear()
