"""DP-LoRA: clipped per-record gradients of an adapter, added up and noised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.errors import ProtocolError

if TYPE_CHECKING:
    from fedpriv.private_training.method import Records, SiteMethod
    from fedpriv.protocol import Proposal


class DpLoraMethod:
    """A `fedpriv.private_training.method.Method` that has no settings of its own."""

    needs_set = False
    normalises = True

    def at_site(self, proposal: Proposal, records: Records = ()) -> SiteMethod:
        """See `Method.at_site`."""
        from fedpriv.methods.dp_lora.site_half import DpLora

        if proposal.settings or proposal.public_records:
            raise ProtocolError("settings: dp-lora has none, and no use for public records.")
        return DpLora(normalise=proposal.privacy.normalise is not None)
