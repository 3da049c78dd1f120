"""The arguments of a private Trainer, and by name those that have no place in one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from fedpriv.arguments import FINITE, valid
from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.privacy import usual
from fedpriv.privacy.usual import Numerics

with without_hub_code():
    from transformers import TrainingArguments

_LEAVE = "Leave it out."
_BATCH = "a step is one secret Poisson sample, whose size is by chance and never told"
_ALONE = "a record's gradient has to be a function of that record alone, or clipping bounds nothing"
_ONCE = "runs a layer once, when gradients of single records are made"
_BOUNDED = "Leave it out; microbatches bound what a step holds."
_PLAIN = {int, float, bool, str, type(None)}
_NUMBERS = (bool, int, float)
_OURS = {"columns", "labels", "numerics", "unit", "ledger", "witness", "job", "dataset_text_field"}
_LOADED = "Load the model yourself, and give it in place of its name."
_TOKENIZER = "Set it in the tokenizer, and give that as processing_class."
_PACKING = ((False, None), f"does not pack several records into a window: {_ALONE}", _LEAVE)
# What an argument may be, else why not, and what to do.
ALLOWED: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "packing": _PACKING,
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
    "report_to": (
        ("none", None),
        "tells no tool while it trains: the times of events show how many records were drawn",
        "Leave it out, and log trainer.state.log_history when the training has ended.",
    ),
    "push_to_hub": (
        (False,),
        "sends nothing while it trains: the times of commits show how many records were drawn",
        "Leave it out, and call trainer.push_to_hub() when the training has ended.",
    ),
    "include_num_input_tokens_seen": (
        ("no", False),
        "counts no tokens of a sample, nor how many there are in a second",
        _LEAVE,
    ),
    "eval_packing": _PACKING,
    "loss_type": (
        ("nll",),
        "has the negative log-likelihood as its loss",
        _LEAVE,
    ),
    "router_aux_loss_coef": ((None, 0), f"has no loss over a batch: {_ALONE}", _LEAVE),
    "activation_offloading": ((False, None), _ONCE, _BOUNDED),
    "trust_remote_code": ((False, None), "runs no code of a model's repository", _LEAVE),
    "truncation_mode": (
        ("keep_start", None),
        "keeps the beginning of a text, and of a conversation what is to be learned",
        _LEAVE,
    ),
    "model_init_kwargs": ((None,), "loads a model as it is stored", _LOADED),
    "chat_template_path": ((None,), "takes the template of the tokenizer", _TOKENIZER),
    "eos_token": ((None,), "takes the end token of the tokenizer", _TOKENIZER),
    "pad_token": ((None,), "takes the padding token of the tokenizer", _TOKENIZER),
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
    ``max_steps`` says the steps. Gradients are not clipped again (``max_grad_norm`` 0), and no
    tool is told of a run while it lasts (``report_to``).

    Args:
        settings: those of `TrainingArguments`, and as of `PrivateStep` `epsilon`,
            `noise_multiplier`, `delta`, `size`, `sample_rate`, `clip_norm`, `unit`,
            `max_records_per_unit`, `columns`, `labels`, `max_length`, `numerics`, `ledger`,
            `witness`, `job`, `microbatch` and `max_empty`. `ledger` and `witness` are paths as
            text.
        dataset_text_field: the column of the text, where records have no other format.
        eval_data_is_public: whoever writes the script states that the records of evaluation are.
        dataset_num_proc, dataset_kwargs, shuffle_dataset, packing_strategy, pad_to_multiple_of: of
            trl; they change nothing here.

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
    max_empty: float = usual.MAX_EMPTY
    dataset_text_field: str = "text"
    eval_data_is_public: bool = False
    packing: bool = False
    padding_free: bool = False
    completion_only_loss: bool | None = None
    assistant_only_loss: bool | None = None
    eval_packing: bool | None = None
    loss_type: str = "nll"
    router_aux_loss_coef: float | None = None
    activation_offloading: bool = False
    trust_remote_code: bool = False
    truncation_mode: str = "keep_start"
    model_init_kwargs: dict[str, Any] | str | None = None
    chat_template_path: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    dataset_num_proc: int | None = None
    dataset_kwargs: dict[str, Any] | str | None = None
    shuffle_dataset: bool = False
    packing_strategy: str = "bfd"
    pad_to_multiple_of: int | str | None = None
    max_grad_norm: float = 0.0
    report_to: str | list[str] | None = "none"
    logging_nan_inf_filter: bool = False  # the loss of a step is not known, and says so

    def __post_init__(self) -> None:
        for name, adapter in _adapters().items():
            setattr(self, name, valid(name, getattr(self, name), adapter))
        for name, kinds in _kinds().items():
            value = getattr(self, name)
            if isinstance(value, _NUMBERS) and not kinds.intersection(_NUMBERS):
                raise ConfigError("is no number", key=name, value=value, fix=_LEAVE)
        if self.report_to in ([], ["none"]):  # as transformers leaves it
            self.report_to = "none"
        for name, (allowed, why, fix) in ALLOWED.items():
            value = getattr(self, name, allowed[0])
            if not (isinstance(value, tuple(_PLAIN)) and value in allowed):
                raise ConfigError(f"a private run {why}", key=name, value=value, fix=fix)
        with of_transformers("args"):
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
        for key, stated in (
            ("per_device_train_batch_size" if self.sample_rate is None else "sample_rate", rate),
            ("num_train_epochs", self.num_train_epochs if self.max_steps <= 0 else 1),
        ):
            if stated <= 0:
                raise ConfigError("must be above 0", key=key, fix="Such as 1.")
        if self.max_steps > 0:
            return rate, self.max_steps
        return rate, max(1, math.ceil(self.num_train_epochs / rate))


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    """What checks the arguments that are numbers, true or false, and some of ours."""
    hints: dict[str, Any] = get_type_hints(PrivateConfig)
    hints["labels"] = list[str | bool | int]
    return {
        name: TypeAdapter(hints[name], config=FINITE)
        for name, kinds in _kinds().items()
        if name in _OURS or kinds <= _PLAIN - {str}
    }


@cache
def _kinds() -> dict[str, set[Any]]:
    """The types that an argument may have. transformers opens a number as a file, where none is."""
    hints = get_type_hints(PrivateConfig)
    names = [field.name for field in fields(PrivateConfig) if field.init]
    return {name: set(get_args(hints[name])) or {hints[name]} for name in names}


@contextmanager
def of_transformers(key: str) -> Iterator[None]:
    """Say as an error of ours what transformers refuses in a setting: it has no errors of its own.

    Raises:
        ConfigError: with what transformers says.
    """
    try:
        yield
    except FedprivError:
        raise
    except Exception as error:
        text = str(error).strip().rstrip(".") or type(error).__name__
        raise ConfigError(f"transformers refuses it: {text}", key=key) from error


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
