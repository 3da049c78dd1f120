"""Put a LoRA adapter on a base model (Hu et al. 2021, through peft)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedpriv.config.task import Task
from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError, ModelError
from fedpriv.models.base import first_line
from fedpriv.models.config import HEADS, LoraSection

if TYPE_CHECKING:
    from peft import PeftModel

    from fedpriv.models.base import Base

# Peft gives these models' out_proj no adapter: its weight is used without the layer.
_MAMBA = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")


@without_hub_code()  # peft imports bitsandbytes where it is installed, now or later
def attach_lora(base: Base, settings: LoraSection, task: Task, *, seed: int) -> PeftModel:
    """Attach to a base an adapter that starts as the identity, drawn from the public `seed`.

    If `base.begin` continues another adapter, the new one starts at that adapter's values.

    With `frozen_a` the drawn lora_A stays as it is (Sun et al. 2024, "Improving LoRA in
    privacy-preserving federated learning"): the update is linear in what is trained.

    No dropout: a mask shared by the records of a batch would tie them together (law 4).

    Raises:
        ConfigError: ``lora.target_modules`` or ``lora.modules_to_save`` matches nothing in this
            model.
        ModelError: peft knows no targets for this architecture and none are named; or
            `base.begin` is of another shape.
    """
    import torch
    from peft import LoraConfig, TaskType, get_peft_model

    named = [name for name, _ in base.model.named_modules() if name]
    _check_names(base, "modules_to_save", settings.modules_to_save, named)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        target_modules=targets(base, settings),
        lora_dropout=0.0,
        bias="none",
        modules_to_save=list(settings.modules_to_save) or None,
        task_type=TaskType.CAUSAL_LM if task == "causal-lm" else TaskType.SEQ_CLS,
    )
    fix = f"Name some of: {', '.join(_last_names(base))}."
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        try:
            model = get_peft_model(base.model, config)
        except (ValueError, TypeError, AttributeError, NotImplementedError) as error:
            problem = f"peft can't put an adapter there: {first_line(error)}"
            raise ConfigError(
                problem, key="lora.target_modules", value=settings.target_modules, fix=fix
            ) from None
    if base.begin is not None:
        base.begin(model)
    if settings.frozen_a:
        for name, parameter in model.named_parameters():
            if ".lora_A." in name:
                parameter.requires_grad_(False)
    model.eval()
    return model


def trained_whole(settings: LoraSection) -> tuple[str, ...]:
    """Return names of layers that get no adapter, because all of their weights are trained."""
    return (*settings.modules_to_save, *HEADS)


def targets(base: Base, settings: LoraSection) -> list[str]:
    """Return names, or ends of names, of the layers that get an adapter.

    Raises:
        ConfigError, ModelError: as `attach_lora`.
    """
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    wanted = settings.target_modules
    if wanted == "all-linear":
        return _all_linear(base, settings)
    within = [name for name, _ in layers(base) if not matches(name, settings.modules_to_save)]
    if wanted != "auto":
        _check_names(base, "target_modules", wanted, within)
        return list(wanted)
    kind = base.model.config.get_text_config().model_type
    known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(kind, ())
    found = [name for name in known if any(matches(layer, [name]) for layer in within)]
    if not found:
        raise ModelError(
            f"lora.target_modules: 'auto' knows no layers for model type {kind!r}."
            f" Name some of: {', '.join(_last_names(base))}."
        )
    if _text_part(base) is None:
        return found
    return [name for name in within if matches(name, found)]  # not layers that see pictures


def _all_linear(base: Base, settings: LoraSection) -> list[str]:
    """Return every linear layer but the output and those trained whole.

    Peft's own "all-linear" trips over DistilBERT, whose `pre_classifier` it takes for a head.
    """
    model: Any = base.model
    output = model.get_output_embeddings()
    heads = HEADS if output is None else ()  # a classifier's output has another name
    whole = (*settings.modules_to_save, *heads)
    found = [
        name for name, module in layers(base) if module is not output and not name.endswith(whole)
    ]
    if not found:
        raise ModelError(
            f"lora.target_modules: this {model.config.model_type} has none of torch's own linear"
            " layers, and only those can have an adapter. Take another architecture."
        )
    return found


def layers(base: Base) -> Iterator[tuple[str, Any]]:
    """Yield the layers that can have an adapter, by name: those that a text goes through."""
    part = _text_part(base)
    past = "out_proj" if base.model.config.model_type in _MAMBA else None
    for name, module in base.model.named_modules():
        read = (part is None or name.startswith(part)) and name.rpartition(".")[2] != past
        if read and type(module).__name__ in ("Linear", "Conv1D"):
            yield name, module


def _text_part(base: Base) -> str | None:
    """Return where the language model is in a model of several inputs; None for a plain one."""
    model: Any = base.model
    if model.config.get_text_config() is model.config:
        return None
    part = model.get_decoder()
    return next(f"{name}." for name, module in model.named_modules() if module is part)


def _last_names(base: Base) -> list[str]:
    return sorted({name.rpartition(".")[2] for name, _ in layers(base)})


def matches(name: str, wanted: Iterable[str]) -> bool:
    """Tell whether peft takes a layer of that name for one of the wanted names."""
    return any(name == one or name.endswith(f".{one}") for one in wanted)


def _check_names(base: Base, key: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    for target in wanted:
        if not any(matches(name, [target]) for name in known):
            problem = (
                f"matches no layer of this {base.model.config.model_type} model that can be"
                f" {'given an adapter' if key == 'target_modules' else 'trained'}"
            )
            fix = f"Name some of: {', '.join(_last_names(base))}."
            raise ConfigError(problem, key=f"lora.{key}", value=target, fix=fix)
        wider = [one for one in known if one.endswith(target) and not matches(one, [target])]
        if key == "modules_to_save" and wider:  # peft looks at the end of a name alone
            found = next(name for name in known if matches(name, [target]))
            fix = f"Name more of the path, such as {found!r}."
            problem = f"would train {wider[0]!r} whole, too"
            raise ConfigError(problem, key=f"lora.{key}", value=target, fix=fix)
