"""Read what is known of a base model before it is loaded: digest, layers, an adapter's shapes."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

from fedpriv.base_model import source_of
from fedpriv.environment import without_hub_code
from fedpriv.models.base import FAILURES, Base, fetch_base, load_tokenizer, not_loaded, quiet
from fedpriv.models.config import Bits, LoraSection, ModelSection
from fedpriv.models.digest import base_digest, quantised_digest
from fedpriv.models.lora import layers, matches, targets


def digest_of(name: str) -> str:
    """Return the digest of the base of that name, for any use; its weights are only read.

    Raises:
        ModelError: as `load_base`.
    """
    settings = ModelSection(name=name)
    tokenizer = load_tokenizer(settings)
    return base_digest(fetch_base(settings), tokenizer)


def digests_of_use(digest: str) -> tuple[str, ...]:
    """Return the digests by which a job may name a base: in full, and in each number of bits."""
    return digest, *(quantised_digest(digest, bits) for bits in get_args(Bits))


def linear_sizes(settings: ModelSection) -> Counter[tuple[int, int]]:
    """Count the linear layers of each size, (in, out), of a model; its weights are not read.

    Raises:
        ModelError: there is no such model, or it is not for the task.
    """
    named = ((type(m).__name__, m) for m in without_weights(settings).modules())
    sizes = ((name, m.weight.shape) for name, m in named if name in ("Linear", "Conv1D"))
    return Counter((n, k) if name == "Conv1D" else (k, n) for name, (n, k) in sizes)


@without_hub_code()
def without_weights(settings: ModelSection) -> Any:
    """Make a model from its configuration alone, on torch's device for shapes.

    Raises:
        ModelError: there is no such model, or it is not for the task.
    """
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM if settings.task == "causal-lm" else AutoModel
    try:
        source = source_of(settings.name)
        with torch.device("meta"), quiet():
            config = AutoConfig.from_pretrained(source, trust_remote_code=False)
            return factory.from_config(config)
    except (*FAILURES, RuntimeError) as error:
        raise not_loaded(settings, error) from None


@without_hub_code()
def adapter_shapes(settings: ModelSection, lora: LoraSection) -> Counter[tuple[int, int]]:
    """Count the matrices of each shape, (rows, columns), that an adapter trains: A and B of layers.

    Raises:
        ModelError: there is no such model.
        ConfigError: ``lora.target_modules`` matches nothing in it.
    """
    model: Any = without_weights(settings)
    base = Base(model, None, settings.name, digest="")  # type: ignore[arg-type]
    found: Counter[tuple[int, int]] = Counter()
    names = targets(base, lora)
    for name, layer in layers(base):
        if matches(name, names):
            inputs, outputs = layer.weight.shape
            if type(layer).__name__ == "Linear":
                inputs, outputs = outputs, inputs
            found[lora.r, inputs] += not lora.frozen_a
            found[outputs, lora.r] += 1
    return +found
