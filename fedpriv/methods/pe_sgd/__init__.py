"""PE-SGD: coefficients of a gradient in the gradients of a public synthetic set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from fedpriv.config.job import JobConfig
    from fedpriv.private_training.method import Records, SiteMethod
    from fedpriv.protocol import Proposal


class PeSgdMethod:
    """As `fedpriv.private_training.method.Method`."""

    needs_set = True
    has_groups = False  # a coefficient belongs to no layer

    def settings(self, config: JobConfig) -> Mapping[str, Any]:
        """See `ProjectionSection`."""
        from fedpriv.public_update.config import DenoiseSection

        assert config.synthetic is not None  # whoever calls has seen to it
        # What is lifted from coefficients has noise of another size in every direction.
        if config.denoise != DenoiseSection():
            raise ConfigError(
                "needs noise of one known size, which a gradient made of coefficients does not"
                " have",
                key="denoise",
                fix="Leave it out.",
            )
        if config.job.sync > 1 and config.optimizer.weight_decay:
            raise ConfigError(
                "sites move coefficients, which are no weights",
                key="optimizer.weight_decay",
                value=config.optimizer.weight_decay,
                fix="Set it in server_optimizer.",
            )
        return config.synthetic.projection.model_dump(mode="json")

    def at_site(self, proposal: Proposal, records: Records = ()) -> SiteMethod:
        """See `site`."""
        from fedpriv.methods.pe_sgd.site import PeSgd, projection_of

        return PeSgd(projection_of(proposal), records)
