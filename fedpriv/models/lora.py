"""Put a LoRA adapter on a base model (Hu et al. 2021, through peft)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedpriv.config.job import LoraSection
from fedpriv.config.task import Task
from fedpriv.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from peft import PeftModel

    from fedpriv.models.base import Base

HEADS = ("classifier", "score")  # of a classifier, which peft trains whole


def attach_lora(
    base: Base,
    settings: LoraSection,
    task: Task,
    *,
    seed: int,
) -> PeftModel:
    """A PEFT model whose adapter starts as the identity, drawn from the public `seed`.

    With `frozen_a` the drawn lora_A stays as it is (Sun et al. 2024, "Improving LoRA in
    privacy-preserving federated learning"): the update is linear in what is trained.

    No dropout: a mask shared by the records of a batch would tie them together (law 4).

    Raises:
        ConfigError: ``lora.target_modules`` or ``lora.modules_to_save`` matches nothing in this
            model.
        ModelError: peft knows no targets for this architecture and none are named.
    """
    import torch

    from fedpriv.models.quantised import plain_bitsandbytes

    with plain_bitsandbytes():  # peft imports bitsandbytes wherever it is installed
        from peft import LoraConfig, TaskType, get_peft_model

    layers = sorted({name.rpartition(".")[2] for name, _ in base.model.named_modules()} - {""})
    layers = [name for name in layers if not name.isdigit()]
    _check_names(base, "modules_to_save", settings.modules_to_save, layers)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        target_modules=_targets(base, settings),
        lora_dropout=0.0,
        bias="none",
        modules_to_save=list(settings.modules_to_save) or None,
        task_type=TaskType.CAUSAL_LM if task == "causal-lm" else TaskType.SEQ_CLS,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = get_peft_model(base.model, config)
    if settings.frozen_a:
        for name, parameter in model.named_parameters():
            if ".lora_A." in name:
                parameter.requires_grad_(False)
    model.eval()
    return model


def trained_whole(settings: LoraSection) -> tuple[str, ...]:
    """Names of layers that get no adapter, as all of their weights are trained."""
    return (*settings.modules_to_save, *HEADS)


def _targets(base: Base, settings: LoraSection) -> list[str]:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    kind = base.model.config.model_type
    linear = sorted({name.rpartition(".")[2] for name, _ in _linear(base)})
    if settings.target_modules == "all-linear":
        return _all_linear(base, settings)
    if settings.target_modules == "auto":
        known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(kind)
        if known is None:
            raise ModelError(
                f"lora.target_modules: 'auto' knows no layers for model type {kind!r}."
                f" Name some of: {', '.join(linear)}."
            )
        return list(known)
    _check_names(base, "target_modules", settings.target_modules, linear)
    return list(settings.target_modules)


def _all_linear(base: Base, settings: LoraSection) -> list[str]:
    """Every linear layer but the output and what is trained whole.

    Peft's own "all-linear" trips over DistilBERT, whose `pre_classifier` it takes for a head.
    """
    model: Any = base.model
    output = model.get_output_embeddings()
    heads = HEADS if output is None else ()  # a classifier's output has another name
    whole = (*settings.modules_to_save, *heads)
    return [
        name for name, module in _linear(base) if module is not output and not name.endswith(whole)
    ]


def _linear(base: Base) -> Iterator[tuple[str, Any]]:
    for name, module in base.model.named_modules():
        if type(module).__name__ in ("Linear", "Conv1D"):
            yield name, module


def _check_names(base: Base, key: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    names = [name for name, _ in base.model.named_modules()]
    for target in wanted:
        if not any(name == target or name.endswith("." + target) for name in names):
            raise ConfigError(
                f"matches no layer of this {base.model.config.model_type} model",
                key=f"lora.{key}",
                value=target,
                fix=f"Name some of: {', '.join(known)}.",
            )
