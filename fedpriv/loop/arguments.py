"""The arguments of a private Trainer, and a list of those that have no place in one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from pydantic import TypeAdapter

from fedpriv.arguments import FINITE, valid
from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.privacy import usual
from fedpriv.privacy.usual import Numerics

with without_hub_code():
    from transformers import TrainingArguments

_LEAVE = "Leave it out."


class Only(NamedTuple):
    """The values that an argument may have, why it may have no others, and what to do instead."""

    values: tuple[Any, ...]
    why: str
    fix: str = _LEAVE


SAMPLE = "a step is one secret Poisson sample, whose size is by chance and never told"
ALONE = "a record's gradient has to be a function of that record alone, or clipping bounds nothing"
_ONE = "clips a record's gradient as a whole, in one process"
_FORMAT = "computes in the number format of the model"
_PLAIN = {int, float, bool, str, type(None)}
_NUMBERS = (bool, int, float)
_OURS = {"labels", "numerics", "unit", "ledger", "witness", "job", "dataset_text_field"}
_TOKENIZER = "Set it in the tokenizer, and give that as processing_class."
_PACKING = Only(
    (False, None),
    f"does not join the records of a batch, or pack several records into a window: {ALONE}",
)
_TELLS = "tells no tool or hub while it trains: the times show how many records were drawn"
_COMPILE = "makes gradients in ways that compiling does not know"
ALLOWED = {
    "packing": _PACKING,
    "padding_free": _PACKING,
    "completion_only_loss": Only(
        (None, True),
        "has its loss on the completion alone, or on all of a text",
        "Leave it out; name the column of a text, if the prompt shall count.",
    ),
    "gradient_accumulation_steps": Only(
        (1,),
        f"makes a step of one sample, and microbatches bound the memory: {SAMPLE}",
        "Set per_device_train_batch_size to the expected units of a whole step.",
    ),
    "accelerator_config": Only((None,), f"needs no loader of batches: {SAMPLE}"),
    "train_sampling_strategy": Only(
        ("random",), f"neither orders nor groups records by what they hold: {SAMPLE}"
    ),
    "data_seed": Only((None,), "draws samples in secret: who knows a seed knows who was in"),
    "label_smoothing_factor": Only((0,), "has another loss, without smoothing", "Use 0."),
    "neftune_noise_alpha": Only(
        (None, 0), f"draws no noise for a whole batch from a public seed: {ALONE}"
    ),
    "fp16": Only(
        (False, None),
        "does not scale the loss by what earlier records did, and leaves no step out",
        "Use a model in float32 or bfloat16.",
    ),
    "bf16": Only(
        (False, None), _FORMAT, 'Load the model in that: model_init_kwargs={"dtype": "bfloat16"}.'
    ),
    "fp16_full_eval": Only((False,), _FORMAT),
    "bf16_full_eval": Only((False,), _FORMAT),
    "batch_eval_metrics": Only((False,), "computes no metrics but losses and accuracy"),
    "torch_compile": Only((False,), _COMPILE),
    "torch_compile_backend": Only((None,), _COMPILE),
    "torch_compile_mode": Only((None,), _COMPILE),
    "use_liger_kernel": Only((False,), "computes the loss of each record, not of a batch"),
    "fsdp": Only((None, ""), _ONE),
    "deepspeed": Only((None, ""), _ONE),
    "parallelism_config": Only((None,), _ONE),
    "ddp_backend": Only((None,), _ONE),
    "auto_find_batch_size": Only((False, None), f"depends on no memory: {SAMPLE}"),
    "skip_memory_metrics": Only(
        (True,), "logs no memory: it shows how many records were drawn, and how long they are"
    ),
    "debug": Only(("", [], None), "shows nobody the activations of single records"),
    "report_to": Only(
        ("none", None, [], ["none"]),
        _TELLS,
        "Leave it out, and log trainer.state.log_history when the training has ended.",
    ),
    "push_to_hub": Only(
        (False,),
        _TELLS,
        "Leave it out, and call trainer.push_to_hub() when the training has ended.",
    ),
    "include_num_input_tokens_seen": Only(("no", False), "counts no tokens of a sample"),
    "eval_packing": _PACKING,
    "loss_type": Only(("nll", "chunked_nll"), "has the negative log-likelihood as its loss"),
    "router_aux_loss_coef": Only((None, 0), f"has no loss over a batch: {ALONE}"),
    "activation_offloading": Only(
        (False, None),
        "lets no hook see what layers make of single records",
        "Use gradient_checkpointing, or a smaller microbatch.",
    ),
    "trust_remote_code": Only((False, None), "runs no code of a model's repository"),
    "truncation_mode": Only(
        ("keep_start", None),
        "keeps the beginning of a text, and the part of a conversation to be learned",
    ),
    "dataset_kwargs": Only(
        (None, {}, {"skip_prepare_dataset": False}),
        "makes the tokens of each record by itself",
        "Leave it out, and give texts.",
    ),
    "chat_template_path": Only((None,), "takes the tokenizer's own", _TOKENIZER),
    "eos_token": Only((None,), "takes the tokenizer's own", _TOKENIZER),
    "pad_token": Only((None,), "takes the tokenizer's own", _TOKENIZER),
}
# Options of `from_pretrained` that change no record's part in a gradient. Others are refused.
LOADED_ONLY_WITH = {
    "attn_implementation": (None, "eager", "sdpa"),
    "trust_remote_code": (False, None),
    "use_safetensors": (True, None),
    "use_kernels": (False, None),
}
LOADED_WITH = {
    *("dtype", "torch_dtype", "revision", "quantization_config", "device_map", "use_cache"),
    *("cache_dir", "local_files_only", "token", "subfolder", "low_cpu_mem_usage"),
}
_LOSS = (
    "a loss over a batch, such as a mean over all of its tokens, makes each record's gradient"
    " depend on the others"
)
_METRICS = "evaluation is of losses and accuracy on records stated to be public"
# Arguments of a Trainer that a private one does not take, and why.
OF_A_TRAINER = {
    "data_collator": f"fedpriv makes the batches: {SAMPLE}",
    "compute_loss_func": _LOSS,
    "compute_metrics": _METRICS,
    "preprocess_logits_for_metrics": _METRICS,
    "model_init": "every trial of a search would be paid by the same people",
    "formatting_func": "public settings prepare records; bring them in one of the formats",
    "optimizer_cls_and_kwargs": "give an optimizer with optimizers=(optimizer, None)",
}


class LeftOut(int):
    """A default that nobody typed. It gives way to what a model can do."""


@dataclass
class PrivateConfig(TrainingArguments):
    """`TrainingArguments` with the settings of a private run, in place of trl's ``SFTConfig``.

    A step is a Poisson sample of `size` units. ``per_device_train_batch_size`` is how many units
    are expected in it. ``num_train_epochs`` is how often each is expected to be drawn, unless
    ``max_steps`` says how many steps there are. ``max_grad_norm`` is another name of `clip_norm`,
    which bounds the gradient of each unit. The gradient of a step, which is released, is not
    clipped again. No tool is told of a run while it lasts (``report_to``). Defaults are those of
    trl, listed in docs/reference/trl.md.

    Args:
        settings: those of `TrainingArguments` and of trl's ``SFTConfig``, and from `PrivateStep`
            `epsilon`, `noise_multiplier`, `delta`, `size`, `sample_rate`, `clip_norm`, `normalise`,
            `unit`, `max_records_per_unit`, `columns`, `labels`, `max_length`, `numerics`, `ledger`,
            `witness`, `job`, `microbatch` and `max_empty`. `ledger` and `witness` are paths as
            text.
        max_length: by default 1,024, or as many tokens as the model reads if that is less.
        assistant_only_loss: take the loss of a conversation on the assistant's words only; by
            default it is on all tokens.
        eval_data_is_public: the script's author states that the records of evaluation are public.

    Raises:
        ConfigError: an argument has no place in a private run; the error says why.
    """

    _VALID_DICT_FIELDS = [  # noqa: RUF012 (transformers')
        *TrainingArguments._VALID_DICT_FIELDS,
        *("columns", "model_init_kwargs", "dataset_kwargs"),
    ]

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    size: int | None = None
    sample_rate: float | None = None
    clip_norm: float | None = None
    normalise: bool = False
    unit: str = usual.UNIT
    max_records_per_unit: int = usual.MAX_RECORDS_PER_UNIT
    columns: dict[str, str] | str | None = None  # a text is JSON from a command line
    labels: list[str] = field(default_factory=list)
    max_length: int = LeftOut(1024)
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
    assistant_only_loss: bool = False
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
    bf16: bool | None = False  # type: ignore[assignment]
    learning_rate: float = 2e-5
    logging_steps: float = 10
    max_grad_norm: float | None = None  # type: ignore[assignment]
    report_to: list[str] | str | None = "none"

    def __post_init__(self) -> None:
        for name, adapter in _adapters().items():
            if not isinstance(getattr(self, name), LeftOut):
                setattr(self, name, valid(name, getattr(self, name), adapter))
        for name, kinds in _kinds().items():
            value = getattr(self, name)
            if isinstance(value, _NUMBERS) and not kinds.intersection(_NUMBERS):
                raise ConfigError("is no number", key=name, value=value, fix=_LEAVE)
        for name, (allowed, why, fix) in ALLOWED.items():
            value = getattr(self, name, allowed[0])
            if not (isinstance(value, (*_PLAIN, dict, list)) and value in allowed):
                raise ConfigError(f"a private run {why}", key=name, value=value, fix=fix)
        if "layerwise" in str(self.optim):
            raise ConfigError(
                "steps by hooks while a backward pass runs, and a private run has no such hooks",
                key="optim",
                value=self.optim,
                fix="Take the one of that name without layerwise.",
            )
        self._set_clip_norm()
        self.logging_nan_inf_filter = False  # a step's loss is unknown, and stays NaN in the log
        with of_transformers("args"):
            super().__post_init__()  # type: ignore[no-untyped-call]
        self.columns = valid("columns", self.columns, TypeAdapter(dict[str, str] | None))
        self.loading()  # refuses now what would fail later
        if self.world_size > 1:
            raise ConfigError(
                "has several processes, each of which would sample and pay by itself",
                key="world_size",
                value=self.world_size,
                fix="Start the script without a launcher.",
            )

    def _set_clip_norm(self) -> None:
        """Take the clip norm that is typed under either name, or the usual one for the task.

        The Trainer's own is then set to 0, else it would clip once more, after the noise.
        """
        if not self.max_grad_norm and self.max_grad_norm is not None and self.clip_norm is None:
            problem = "would clip nothing, and then no noise is enough"
            fix = "Leave it out, or type the longest that a unit's gradient may be."
            raise ConfigError(problem, key="max_grad_norm", value=self.max_grad_norm, fix=fix)
        typed = self.max_grad_norm or self.clip_norm
        if self.clip_norm not in (None, typed):
            problem = f"is another name of clip_norm, which is {self.clip_norm:g}"
            fix = "Type one of them."
            raise ConfigError(problem, key="max_grad_norm", value=self.max_grad_norm, fix=fix)
        self.clip_norm = usual.clip_norm_of(bool(self.labels)) if typed is None else typed
        self.max_grad_norm = 0.0

    def loading(self) -> dict[str, Any]:
        """Return the options of `from_pretrained` for a model that is given by its name.

        Raises:
            ConfigError: an option has no place here.
        """
        given = {} if self.model_init_kwargs is None else self.model_init_kwargs
        options: dict[str, Any] = {"dtype": "float32", "use_safetensors": True}
        for name, value in given.items() if isinstance(given, dict) else [("", given)]:
            if name not in LOADED_WITH and value not in LOADED_ONLY_WITH.get(name, ()):
                raise ConfigError(
                    "is not an option for loading a model here",
                    key=f"model_init_kwargs.{name}".rstrip("."),
                    value=value,
                    fix="Leave it out, or load the model yourself and give it instead of its name.",
                )
            if value is not None:
                options["dtype" if name == "torch_dtype" else name] = value
        return {**options, "trust_remote_code": False}

    def steps_of(self, size: int) -> tuple[float, int]:
        """Return the sample rate, and how many steps the plan has.

        Args:
            size: how many units were declared.
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
    """Return checks of the arguments that are numbers or true/false, and of some of our own."""
    hints: dict[str, Any] = get_type_hints(PrivateConfig)
    hints["labels"] = list[str | bool | int]
    return {
        name: TypeAdapter(hints[name], config=FINITE)
        for name, kinds in _kinds().items()
        if name in _OURS or kinds <= _PLAIN - {str}
    }


@cache
def _kinds() -> dict[str, set[Any]]:
    """Return the types that each argument may have.

    They are needed because transformers opens a number as a file where it expects a path.
    """
    hints = get_type_hints(PrivateConfig)
    names = [field.name for field in fields(PrivateConfig) if field.init]
    return {name: set(get_args(hints[name])) or {hints[name]} for name in names}


@contextmanager
def of_transformers(key: str) -> Iterator[None]:
    """Turn what transformers raises for a setting into our own error, as it has none of its own.

    Raises:
        ConfigError: transformers refuses the setting; the error says what transformers says.
    """
    try:
        yield
    except FedprivError:
        raise
    except Exception as error:
        text = str(error).strip().rstrip(".") or type(error).__name__
        raise ConfigError(f"transformers refuses it: {text}", key=key) from error


def refuse_named(given: Mapping[str, Any]) -> None:
    """Refuse arguments that a Trainer may be given, and a private one may not.

    Raises:
        ConfigError: an argument has no place here; the error says why.
        TypeError: a Trainer has no such argument.
    """
    for name, value in given.items():
        if name not in OF_A_TRAINER:
            raise TypeError(f"PrivateTrainer has no argument {name!r}.")
        if value is not None:
            problem = f"has no place in a private run: {OF_A_TRAINER[name]}"
            raise ConfigError(problem, key=name, value=type(value).__name__, fix="Leave it out.")
