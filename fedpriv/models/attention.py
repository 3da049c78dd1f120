"""Attention by torch's fused kernels, chosen by the shape of a batch and nothing else."""

from __future__ import annotations

from typing import Any

RECORDWISE = "fedpriv-recordwise"


def register_attention() -> None:
    """Make `RECORDWISE` known to transformers, as a name for ``attn_implementation``.

    It is torch's `scaled_dot_product_attention` with a mask that is always there. What
    transformers does by itself leaves the mask out where no record of the batch is padded: one
    short record would change the kernel, and so the rounding, of all others, and a server can pick
    weights that blow rounding up.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(RECORDWISE, sdpa_attention_forward)
    AttentionMaskInterface.register(RECORDWISE, _always_a_mask)


def use_attention(model: Any) -> None:
    """Let a model attend as `RECORDWISE`, or step by step where that would be something else.

    The fused kernels know no soft cap on the scores (Gemma 2).
    """
    fused = model._supports_sdpa and not getattr(model.config, "attn_logit_softcapping", None)
    model.set_attn_implementation(RECORDWISE if fused else "eager")


def _always_a_mask(**arguments: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    never = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(**{**arguments, **never})
