"""Refuse by name what ties the records of a batch together."""

from __future__ import annotations

from torch import Tensor, nn

from fedpriv.errors import NotPrivateError
from fedpriv.models.base import entries

# Layers whose output for one record depends on the other records of the batch.
_MIXING = (nn.modules.batchnorm._BatchNorm,)
# Packages whose layers and tensors decide themselves how they are multiplied.
_QUANTISERS = (
    "torch.ao.",
    "torchao.",
    "bitsandbytes.",
    "optimum.quanto.",
    "auto_gptq.",
    "awq.",
    "gptqmodel.",
    "compressed_tensors.",
    "hqq.",
    "eetq.",
    "transformers.integrations.",
)
_IN_FULL = (  # for a loop of somebody's own, and for a job
    'Load it in full, or in dtype="bfloat16" where less memory is needed, or with a'
    " BitsAndBytesConfig, of which the weights are read as numbers. A federation file has quantize"
    " in its table [model]."
)
# Rotary positions that depend on the position alone, whatever else was seen.
_CONSTANT_ROPE = ("default", "linear", "llama3", "yarn", "proportional")
# Architectures with a linear layer that is also fed something other than the batch.
_SHARED_POSITIONS = ("deberta", "deberta-v2")


# What a configuration calls the number of its experts.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def refuse_mixing(model: nn.Module) -> None:
    """Refuse by name what is known to tie the records of a batch together.

    Raises:
        NotPrivateError: something does. The error names the layer and the way out.
    """
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", "")
    if kind in _SHARED_POSITIONS:
        raise NotPrivateError(
            f"{kind} feeds relative position embeddings, shared by all records, through its"
            " attention layers, so their per-record gradients are wrong."
            " Use BERT, RoBERTa, DistilBERT or ModernBERT."
        )
    said = list(entries(getattr(config, "to_dict", dict)()))
    if any(key in _EXPERTS and isinstance(value, int) and value > 1 for key, value in said):
        raise NotPrivateError(
            f"{kind} is a mixture of experts: where one record is routed may depend on the others."
            " Use a dense model."
        )
    if any(key == "quantization_config" and value for key, value in said):
        raise NotPrivateError(
            f"{kind} is quantised: how a record's activations are rounded may depend on the others"
            f" of its batch, as where 8 bits are chosen by their outliers. {_IN_FULL}"
        )
    for key, rope in said:
        if key == "rope_type" and isinstance(rope, str) and rope not in _CONSTANT_ROPE:
            raise NotPrivateError(
                f"{kind}: rotary positions of type {rope!r} change with the longest record seen so"
                f" far. Use a model with one of: {', '.join(_CONSTANT_ROPE)}."
            )
    for name, module in model.named_modules():
        if isinstance(module, _MIXING):
            raise NotPrivateError(
                f"{name}: {type(module).__name__} computes statistics over the batch."
                " Use a model with LayerNorm."
            )
        _refuse_foreign_products(name, module)


def _refuse_foreign_products(name: str, module: nn.Module) -> None:
    """Refuse layers and weights that multiply in a way of their own, whatever they are set to.

    Many scale activations by the largest value of a whole batch: torch's and torchao's dynamic
    quantisation of a tensor, or LLM.int8.

    Raises:
        NotPrivateError: there is such a layer. The error names it.
    """
    kinds = [type(module), *(type(p) for p in module.parameters(recurse=False))]
    for kind in kinds:
        foreign = kind.__module__.startswith(_QUANTISERS)
        if foreign or (issubclass(kind, Tensor) and kind is not nn.Parameter):
            raise NotPrivateError(
                f"{name}: {kind.__name__} is quantised: how it rounds a record's activations may"
                f" depend on the others of the batch. {_IN_FULL}"
            )
