"""Attention by torch's fused kernels, chosen by the shape of a batch and nothing else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.models.trial import Trial

RECORDWISE = "fedpriv-recordwise"


def register_attention() -> None:
    """Make `RECORDWISE` known to transformers, as a name for ``attn_implementation``.

    It is torch's `scaled_dot_product_attention` with a mask that is always there. By itself,
    transformers leaves the mask out where no record of the batch is padded. Then one short record
    would change the kernel, and so the rounding, of all others, and a server can pick weights that
    blow rounding up.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(RECORDWISE, sdpa_attention_forward)
    AttentionMaskInterface.register(RECORDWISE, _always_a_mask)


def attend_alone(model: Any, trial: Trial) -> float:
    """Give a model the first attention by which no text depends on others or on padding.

    That is `RECORDWISE`, or plain matrix products, or what transformers chose. Fused kernels know
    no soft cap on the scores (Gemma 2).

    Returns:
        How far its logits are from those of texts alone, in tolerances (`Trial.off_by`).
    """
    register_attention()
    stored = model.config._attn_implementation
    fused = model._supports_sdpa and not getattr(model.config, "attn_logit_softcapping", None)
    best = math.inf
    for name in dict.fromkeys([RECORDWISE] * fused + ["eager", stored]):
        try:
            model.set_attn_implementation(name)
            best = min(best, found := trial.off_by())
        except Exception:  # an architecture may know no such name, or no mask for it
            continue
        if found <= 1:
            break
    return best


def _always_a_mask(**arguments: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    never = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(**{**arguments, **never})
