"""Make a worker from a model that somebody else loaded. Each gradient is that of one record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from fedpriv.data.values import as_text
from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError, ModelError, NotPrivateError
from fedpriv.models.base import Base, compute_alone, longest, pad_with_end
from fedpriv.models.checkpointing import asked_for, checkpointed
from fedpriv.models.config import Bits, LoraSection, ModelSection
from fedpriv.plugins import load_part
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import with_gradients
from fedpriv.private_training.worker import ModelRecipe, Worker

with without_hub_code():
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_FORMATS = (torch.float32, torch.bfloat16, torch.float64)
_lent: WeakSet[nn.Module] = WeakSet()  # the modules of models that steps hold


def section_of(
    model: Any, tokenizer: Any, labels: Sequence[str | bool | int], max_length: int
) -> ModelSection:
    """Describe a model as a federation file would.

    Args:
        labels: labels of a classifier; a language model has none.

    Raises:
        ConfigError: `model` or `tokenizer` is not of transformers, or a window is longer than
            what the model can read.
    """
    base = base_of(model)
    for name, given, kind in (
        ("model", base, PreTrainedModel),
        ("tokenizer", tokenizer, PreTrainedTokenizerBase),
    ):
        if not isinstance(given, kind):
            raise ConfigError(
                f"is a {type(given).__name__}",
                key=name,
                fix=f"Give a {name} of transformers (a {kind.__name__})"
                + (", with one adapter of peft's at most." if name == "model" else "."),
            )
    if max_length > reads(model):
        problem = f"is more than the {reads(model)} tokens that the model can read"
        raise ConfigError(problem, key="max_length", value=max_length, fix="Lower it.")
    return ModelSection(
        name=base.config.name_or_path or "in memory",
        task="classification" if labels else "causal-lm",
        labels=tuple(str(as_text(label)) for label in labels),
        max_length=max_length,
        quantize=_bits_of(base),
    )


def reads(model: Any) -> int:
    """Return how many tokens a model can read."""
    base = base_of(model)
    return longest(base) if isinstance(base, PreTrainedModel) else 2**20


def _bits_of(base: Any) -> Bits | None:
    """Return in how many bits bitsandbytes stores the weights of a model; None if it does not."""
    if getattr(base, "is_loaded_in_8bit", False):
        return "8bit"
    return "4bit" if getattr(base, "is_loaded_in_4bit", False) else None


def worker_of(
    model: Any, tokenizer: Any, section: ModelSection, engine: Any, microbatch: int | None
) -> Worker:
    """Make a worker that holds the model itself, not a copy of it.

    From then on the model attends record by record, and its linear layers make gradients of single
    records. Layers that bitsandbytes quantised multiply by the numbers that their codes stand for.
    `Worker.close` undoes the changes to linear and quantised layers.

    Raises:
        NotPrivateError: the model has dropout, or a layer or number format with which a record's
            gradient would not be a function of that record alone; or nothing is trained.
        ConfigError: opacus is asked to read quantised weights, or to compute layers twice.
        ModelError: the tokenizer has neither a padding nor an end token.
    """
    _refuse_dropout(model)
    pad_with_end(tokenizer, "The tokenizer")
    base = base_of(model)
    trained = next((p for p in model.parameters() if p.requires_grad), None)
    first = next(p for p in base.parameters() if p.is_floating_point())
    if first.dtype not in _FORMATS:
        raise NotPrivateError(
            f"The model is in {first.dtype}, which overflows where a record's gradient is large."
            ' Load it with dtype="float32" or "bfloat16".'
        )
    twice = bool(asked_for(base))
    if engine == "opacus" and (section.quantize or twice):
        problem = "knows neither quantised weights nor gradient checkpointing"
        fix = 'Use "fedpriv", or a model in full without.'
        raise ConfigError(problem, key="engine", value=engine, fix=fix)
    with ExitStack() as undone:
        halved = False
        if section.quantize is not None:
            quantised = load_part("model.quantize")
            halved = undone.enter_context(quantised.read_as_numbers(model)) == torch.bfloat16
        mixed = halved and first.dtype == torch.float32
        compute = ComputeSection(
            device=str((first if trained is None else trained).device),
            dtype="mixed" if mixed else str(first.dtype).removeprefix("torch."),
            microbatch=microbatch,
            gradient_checkpointing=twice,
            engine=engine,
        )
        recipe = ModelRecipe(section, LoraSection(), 0, compute)
        with computing(model):
            compute_alone(base, tokenizer, section.max_length, "The model")
            worker = with_gradients(recipe, Base(base, tokenizer, section.name, ""), model)
        undone.callback(worker.gradients.detach)
        worker.resources.enter_context(undone.pop_all())
    return worker


def base_of(model: Any) -> Any:
    """Return the transformers model below a peft adapter, or the model itself without one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def held(model: Any) -> Iterator[None]:
    """Hold a model for one `PrivateStep` while a `with` block lasts.

    Raises:
        NotPrivateError: another step holds the model, or a part of it.
    """
    modules = WeakSet(model.modules() if isinstance(model, nn.Module) else ())
    if not _lent.isdisjoint(modules):
        raise NotPrivateError(
            "The model already makes the gradients of other private steps, which would be lost."
            " Use a model for one PrivateStep at a time: close() lets go of it."
        )
    _lent.update(modules)
    try:
        yield
    finally:
        _lent.difference_update(modules)


@contextmanager
def computing(model: nn.Module) -> Iterator[None]:
    """Keep all modules in evaluation mode during a `with` block, so that none has dropout.

    Layers that were told to keep no activations (`gradient_checkpointing_enable`) keep none in
    this mode, too. Another thread that tries to change the mode meanwhile is refused: a mask of
    dropout depends on who else was drawn.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    for module, _ in modes:
        vars(module)["train"] = _refuse_mode
    try:
        with checkpointed(model):
            yield
    finally:
        for module, mode in modes:
            vars(module).pop("train", None)
            module.training = mode


def _refuse_mode(mode: bool = True) -> None:
    raise NotPrivateError(
        "A private step is being computed with this model, and train() or eval() was called."
        " With dropout, one record would move the gradients of others. Wait until the step is done."
    )


def refuse_more(model: nn.Module, trained: Collection[str]) -> None:
    """Refuse a model in which more parameters are trained than before.

    Args:
        trained: names of the parameters for which steps make gradients.

    Raises:
        NotPrivateError: a step would make no gradient for a trained parameter.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in trained:
            raise NotPrivateError(
                f"{name}: is to be trained, and was not when the private steps were made, so that"
                " they make no gradient of it. Choose what is trained first."
            )


def _refuse_dropout(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if ".lora_dropout." in f".{name}." and isinstance(module, nn.Dropout) and module.p > 0:
            raise NotPrivateError(
                f"{name}: dropout of {module.p:g}. A mask that is drawn for a batch moves one"
                " record's gradient when another joins or leaves, so that clipping bounds nothing."
                " Set lora_dropout = 0; the noise regularises more than it would."
            )


def forwards(model: nn.Module) -> dict[str, Any]:
    """Return the forward passes that somebody put in the place of a module's own, by its name."""
    found = ((name, vars(module).get("forward")) for name, module in model.named_modules())
    return {name: forward for name, forward in found if forward is not None}


def refuse_other_numbers(model: nn.Module, tried: dict[str, Any]) -> None:
    """Refuse to compute otherwise than when gradients were tried: all of a step might be noise.

    Args:
        tried: the `forwards` of then.

    Raises:
        ModelError: autocast or inference mode is active, or a forward pass was replaced.
    """
    device = next(model.parameters()).device.type
    if torch.is_autocast_enabled(device) or torch.is_inference_mode_enabled():
        raise ModelError(
            "A step can't be computed in autocast or inference mode. Leave their `with` block, and"
            " load the model in bfloat16 to compute in that."
        )
    if forwards(model) != tried:
        raise ModelError(
            "The model has another forward pass than when the step was made. Prepare it first, as"
            " by accelerate without mixed precision, and then make the step."
        )
