"""The arguments of a private Trainer, and by name those that have no place in one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from fedpriv.errors import ConfigError
from fedpriv.privacy import usual
from fedpriv.privacy.usual import Numerics

_LEAVE = "Leave it out."
_BATCH = "a step is one secret Poisson sample, whose size is by chance and never told"
_ALONE = "a record's gradient has to be a function of that record alone, or clipping bounds nothing"
_ONCE = "runs a layer once, when gradients of single records are made"
_BOUNDED = "Leave it out; microbatches bound what a step holds."
# What an argument may be, else why not, and what to do.
_ALLOWED: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "packing": ((False, None), f"does not pack several records into a window: {_ALONE}", _LEAVE),
    "padding_free": ((False, None), f"does not join the records of a batch: {_ALONE}", _LEAVE),
    "completion_only_loss": (
        (None, True),
        "has its loss on the completion alone, and a text on all of it",
        "Leave it out; name the column of a text, if the prompt shall count.",
    ),
    "assistant_only_loss": (
        (None, True),
        "has its loss on what the assistant says",
        _LEAVE,
    ),
    "gradient_accumulation_steps": (
        (1,),
        f"makes a step of one sample: {_BATCH}; memory is bounded by microbatches",
        "Set per_device_train_batch_size to the expected units of a whole step.",
    ),
    "train_sampling_strategy": (
        ("random",),
        f"neither orders nor groups records by what they hold: {_BATCH}",
        _LEAVE,
    ),
    "label_smoothing_factor": ((0,), "clips the gradient of another loss", "Use 0."),
    "neftune_noise_alpha": (
        (None, 0),
        f"draws no noise for a whole batch from a public seed: {_ALONE}",
        _LEAVE,
    ),
    "fp16": (
        (False, None),
        "does not scale the loss by what earlier records did, nor leave steps out",
        "Use a model in float32 or bfloat16.",
    ),
    "bf16": (
        (False, None),
        "makes gradients of single records in the number format of the model",
        'Load the model with dtype="bfloat16" instead.',
    ),
    "gradient_checkpointing": ((False, None), _ONCE, _BOUNDED),
    "activation_checkpointing": ((False, None), _ONCE, _BOUNDED),
    "torch_compile": ((False,), "makes gradients in ways that compiling does not know", _LEAVE),
    "use_liger_kernel": ((False,), "computes the loss of each record, not that of a batch", _LEAVE),
    "fsdp": ((None, ""), "clips a record's gradient as a whole, in one process", _LEAVE),
    "auto_find_batch_size": ((False, None), f"depends on no memory: {_BATCH}", _LEAVE),
    "skip_memory_metrics": (
        (True,),
        "logs no memory: it tells how many records were drawn, and how long they are",
        _LEAVE,
    ),
    "deepspeed": ((None, ""), "clips a record's gradient as a whole, in one process", _LEAVE),
}
_LOSS = (
    "the loss is each record's own, a mean over its own tokens; a loss over a batch, such as a mean"
    " over all of its tokens, makes every record's gradient depend on the others"
)
# Arguments of a Trainer that a private one does not take, and why.
_OF_A_TRAINER = {
    "data_collator": f"{_BATCH}, and batches are made of it here",
    "compute_loss_func": _LOSS,
    "compute_metrics": "evaluation is of losses and accuracy on records stated to be public",
    "preprocess_logits_for_metrics": "evaluation is of losses and accuracy",
    "model_init": "every trial of a search would be paid by the same people",
    "formatting_func": "records are prepared by public settings; bring them in one of the formats",
    "optimizer_cls_and_kwargs": "give an optimizer with optimizers=(optimizer, None)",
}


@dataclass
class PrivateConfig(TrainingArguments):
    """`TrainingArguments` with what a private run has besides, in place of trl's ``SFTConfig``.

    A step is a Poisson sample of `size` units; ``per_device_train_batch_size`` is how many are
    expected in it, and ``num_train_epochs`` how often each is expected to be drawn, unless
    ``max_steps`` says the steps. Gradients are not clipped again (``max_grad_norm`` 0), and nobody
    is told of a run unless ``report_to`` says whom.

    Args:
        settings: those of `TrainingArguments`, and as of `PrivateStep` `epsilon`,
            `noise_multiplier`, `delta`, `size`, `sample_rate`, `clip_norm`, `unit`,
            `max_records_per_unit`, `columns`, `labels`, `max_length`, `numerics`, `ledger`,
            `witness`, `job` and `microbatch`. `ledger` and `witness` are paths as text.
        dataset_text_field: the column of the text, where records have no other format.
        eval_data_is_public: whoever writes the script states that the records of evaluation are.

    Raises:
        ConfigError: an argument that has no place in a private run; says why.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    size: int | None = None
    sample_rate: float | None = None
    clip_norm: float = 1.0
    unit: str = usual.UNIT
    max_records_per_unit: int = usual.MAX_RECORDS_PER_UNIT
    columns: dict[str, str] | None = None
    labels: list[str] = field(default_factory=list)
    max_length: int = 128
    numerics: Numerics = "default"
    ledger: str | None = None
    witness: str | None = None
    job: str | None = None
    microbatch: int | None = None
    dataset_text_field: str = "text"
    eval_data_is_public: bool = False
    packing: bool = False
    padding_free: bool = False
    completion_only_loss: bool | None = None
    assistant_only_loss: bool | None = None
    max_grad_norm: float = 0.0
    report_to: str | list[str] | None = "none"
    logging_nan_inf_filter: bool = False  # the loss of a step is not known, and says so

    def __post_init__(self) -> None:
        for name, (allowed, why, fix) in _ALLOWED.items():
            value = getattr(self, name, allowed[0])
            if value not in allowed:
                raise ConfigError(f"a private run {why}", key=name, value=value, fix=fix)
        super().__post_init__()  # type: ignore[no-untyped-call]
        if self.world_size > 1:
            raise ConfigError(
                "has several processes, each of which would sample and pay by itself",
                key="world_size",
                value=self.world_size,
                fix="Start the script without a launcher.",
            )

    def steps_of(self, size: int) -> tuple[float, int]:
        """The sample rate, and the steps of the plan.

        Args:
            size: declared units.
        """
        rate = self.sample_rate
        if rate is None:
            rate = min(1.0, self.per_device_train_batch_size / size)
        if self.max_steps > 0:
            return rate, self.max_steps
        return rate, max(1, math.ceil(self.num_train_epochs / rate))


def refuse_named(given: Mapping[str, Any]) -> None:
    """Refuse what a Trainer may be given, and a private one may not.

    Raises:
        ConfigError: says why.
    """
    for name, value in given.items():
        if name not in _OF_A_TRAINER:
            raise TypeError(f"PrivateTrainer has no argument {name!r}.")
        if value is not None:
            raise ConfigError(
                f"has no place in a private run: {_OF_A_TRAINER[name]}",
                key=name,
                value=type(value).__name__,
                fix="Leave it out.",
            )
