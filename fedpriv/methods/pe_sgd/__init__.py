"""PE-SGD: coefficients of a gradient in the gradients of a public synthetic set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpriv.private_training.method import Records, SiteMethod
    from fedpriv.protocol import Proposal


class PeSgdMethod:
    """A `fedpriv.private_training.method.Method`."""

    needs_set = True
    normalises = False  # a coefficient belongs to no adapter

    def at_site(self, proposal: Proposal, records: Records = ()) -> SiteMethod:
        """See `Method.at_site`."""
        from fedpriv.methods.pe_sgd.site_half import PeSgd, projection_of

        return PeSgd(projection_of(proposal), records)
