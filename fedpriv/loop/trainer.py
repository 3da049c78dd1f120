"""The Trainer of transformers with private steps only."""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from fedpriv.data.in_memory import Records, check_records, columns_of
from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError, ModelError
from fedpriv.loop.arguments import ALLOWED, LeftOut, PrivateConfig, of_transformers, refuse_named
from fedpriv.loop.ledger import declared_size
from fedpriv.loop.model import base_of, reads, section_of
from fedpriv.loop.step import PrivateStep
from fedpriv.models.base import refuse_code
from fedpriv.plain_training.adapter import check_saved
from fedpriv.report.figures import worse
from fedpriv.stored_adapter import refuse_own

with without_hub_code():  # else bitsandbytes, which a Trainer imports, would run code of a hub
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        PretrainedConfig,
        Trainer,
        TrainerCallback,
        set_seed,
    )
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, PredictionOutput, TrainOutput

logger = logging.getLogger(__name__)
# What a Trainer logs about the records, about its idle batches, or about how long steps took.
_NOT_LOGGED = {
    *("loss", "train_loss", "train_runtime", "train_samples_per_second"),
    *("train_steps_per_second", "total_flos"),
}
# Arguments that a `PrivateStep` has with the same names.
_AS_OF_A_STEP = (
    *("epsilon", "noise_multiplier", "delta", "size", "unit", "max_records_per_unit", "labels"),
    *("max_length", "normalise", "numerics", "ledger", "witness", "job", "microbatch"),
    "max_empty",
)


class PrivateTrainer(Trainer):
    """A Trainer whose steps are those of `PrivateStep`. Optimiser, schedule, callbacks stay.

    A script for trl's ``SFTTrainer`` changes two lines: the import, and the arguments, to which ε,
    δ and the declared size are added. Records may have the formats of trl: ``text``; ``prompt``
    and ``completion``, as texts or as lists of messages; ``messages``; or ``text`` and ``label``.

    Args:
        model: a model of transformers, or its name or folder; with an adapter, or with
            `peft_config`.
        args: a `PrivateConfig`.
        train_dataset: the private records.
        eval_dataset: public records, if ``args.eval_data_is_public`` says that they are; or several
            sets of them by name.
        processing_class: the tokenizer.
        peft_config: settings of the adapter to put on the model.
        callbacks, optimizers: as in a Trainer.
        quantization_config: settings of bitsandbytes, for a model that is given by its name.
        refused: further arguments of a Trainer, which have no place here.

    Attributes:
        private: the private steps, with their cost.

    Raises:
        FedprivError: as in `PrivateConfig` and `PrivateStep`; says what was given, and why it can't
            be used.

    Privacy:
        As of `PrivateStep`: the trained model, checkpoints, and all that is logged are made of
        releases and public settings. No training loss is logged, because nobody paid for one; in
        its place are ``epsilon``, of the steps so far, and ``epsilon_planned``, the claim. Samples
        are drawn inside the steps: the Trainer's own data loader counts, and holds no record. A run
        goes on from a checkpoint only with a ledger, which knows what was paid before.
    """

    args: PrivateConfig

    def __init__(
        self,
        model: Any,
        args: PrivateConfig | None = None,
        train_dataset: Records | None = None,
        eval_dataset: Records | dict[str, Records] | None = None,
        processing_class: Any = None,
        peft_config: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        **refused: Any,
    ) -> None:
        refuse_named(refused)
        if not isinstance(args, PrivateConfig):
            fix = "Use fedpriv.PrivateConfig, which takes the same arguments and more."
            raise ConfigError("has no ε", key="args", value=type(args).__name__, fix=fix)
        _check_evaluation(args, eval_dataset)
        _check_parts(callbacks, optimizers)
        check_records(train_dataset, "train_dataset")
        assert train_dataset is not None  # else it would have said so
        for records in _sets_of(eval_dataset).values():
            check_records(records, "eval_dataset")
        columns = _columns(train_dataset, args)
        size = declared_size(args.size, args.ledger)
        rate, args.max_steps = args.steps_of(size)
        self._epoch = range(math.ceil(1 / rate))  # the steps in which each unit is drawn once
        with of_transformers("model"):
            model = _with_adapter(model, peft_config, args, quantization_config)
        tokenizer = _tokenizer_of(model, args) if processing_class is None else processing_class
        if isinstance(args.max_length, LeftOut):
            args.max_length = min(args.max_length, reads(model))
        section_of(model, tokenizer, args.labels, args.max_length)
        if args.gradient_checkpointing:
            with of_transformers("gradient_checkpointing"):
                base = base_of(model)
                older = base.gradient_checkpointing_enable
                getattr(base, "activation_checkpointing_enable", older)()
        with of_transformers("args"):
            super().__init__(
                model=model,
                args=args,
                train_dataset=self._epoch,
                eval_dataset=eval_dataset,
                processing_class=tokenizer,
                callbacks=[*(callbacks or [])],
                optimizers=optimizers,
            )
        if (
            self.accelerator.mixed_precision != "no"
        ):  # of the environment, as accelerate launch sets
            fix = 'Use "no", and load the model in bfloat16 to compute in that.'
            value = self.accelerator.mixed_precision
            raise ConfigError("is not used", key="mixed_precision", value=value, fix=fix)
        self.private = PrivateStep(
            self.model,
            self.processing_class,
            train_dataset,
            steps=args.max_steps,
            sample_rate=rate,
            clip_norm=args.clip_norm or 0.0,
            columns=columns,
            **{name: getattr(args, name) for name in _AS_OF_A_STEP},
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader that only counts steps. Records are sampled within the steps."""
        steps: Any = self._epoch
        return DataLoader(steps, batch_size=1, collate_fn=lambda _: {})

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train as `Trainer.train` does.

        Raises:
            ConfigError: there is no ledger that knows what was paid before the checkpoint, or
                steps of the plan were taken and no checkpoint is named.
            SlotError: all steps of the plan were taken.
        """
        if resume_from_checkpoint and self.args.ledger is None:
            raise ConfigError(
                "continues a run whose privacy account was not kept",
                key="resume_from_checkpoint",
                value=resume_from_checkpoint,
                fix="Train with a ledger (fedpriv ledger init) and a name for the plan (job).",
            )
        if not resume_from_checkpoint and self.private.taken and self.private.left:
            raise ConfigError(
                f"is missing, and {self.private.taken} of {self.args.max_steps} steps were taken",
                key="resume_from_checkpoint",
                fix="Name a checkpoint, or begin a plan of another name (job).",
            )
        for callback in self.callback_handler.callbacks:
            _refuse_tools(callback)
        found = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        log = self.state.log_history
        losses = {row["step"]: row["eval_loss"] for row in log if "eval_loss" in row}
        best = self.args.load_best_model_at_end and self.state.best_model_checkpoint
        step = int(best.rpartition("-")[2]) if best else self.state.global_step
        if self.state.global_step < self.args.max_steps:
            logger.warning(
                "The model has %d of the %d steps of its plan. The claim is the plan's, ε = %.3f.",
                self.state.global_step,
                self.args.max_steps,
                self.private.epsilon_planned,
            )
        if said := worse(losses.get(0), losses.get(step)):  # 0: with eval_on_start
            logger.warning("%s", said)
        return found._replace(metrics=_shown(found.metrics))

    def add_callback(self, callback: Any) -> None:
        """Add a callback as `Trainer.add_callback` does.

        Raises:
            ConfigError: it belongs to a tool.
        """
        _refuse_tools(callback)
        super().add_callback(callback)

    def training_step(self, *_: Any, **__: Any) -> torch.Tensor:
        """Take a private step. Return NaN, because nobody knows its loss.

        A run that went on from an older checkpoint ends when the steps of its plan are used up.
        """
        self.private.backward()
        self.control.should_training_stop |= not self.private.left
        return torch.full((), torch.nan, device=self.args.device)

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """Date a checkpoint by its step. Real dates would tell how long the steps took."""
        super()._save_checkpoint(*arguments, **options)
        step = self.state.global_step  # a date, since transformers deletes the oldest checkpoint
        for folder in Path(str(self.args.output_dir)).glob(f"{PREFIX_CHECKPOINT_DIR}-{step}"):
            for path in (folder, *folder.rglob("*")):
                os.utime(path, (step, step))

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0. The true number would tell how many records were drawn, and their length."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the public figures, with ε of the steps so far and the plan's, which is the claim."""
        spent, planned = self.private.epsilon, self.private.epsilon_planned
        super().log({**_shown(logs), "epsilon": spent, "epsilon_planned": planned})

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Measure loss and accuracy on records that are stated to be public.

        Args:
            eval_dataset: records, sets of them by name, or the name of a set.

        Raises:
            ConfigError: nobody stated that they are public, or there are none.
            DataError: some are among the records that train.
        """
        records: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(records, str):
            records = _sets_of(self.eval_dataset).get(records)
        if records is None:
            raise ConfigError("is missing", key="eval_dataset", fix="Give public records.")
        if isinstance(records, dict):
            found: dict[str, float] = {}
            for name, part in records.items():
                found |= self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}")
            return found
        scores = self.private.evaluate(records, data_is_public=self.args.eval_data_is_public)
        named = scores.as_dict().items()
        found = {key.replace("eval", metric_key_prefix, 1): value for key, value in named}
        self.log(dict(found))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
    ) -> PredictionOutput:
        """Predict as `Trainer.predict` does, for examples that are stated to be public.

        Raises:
            ConfigError: nobody stated that they are public.

        Privacy:
            The examples are tokens already, so copies of the training records are not noticed.
        """
        _check_evaluation(self.args, test_dataset, "test_dataset")
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)


def _shown(metrics: dict[str, float]) -> dict[str, float]:
    """Keep the public metrics."""
    return {key: value for key, value in metrics.items() if key not in _NOT_LOGGED}


def _check_evaluation(args: PrivateConfig, records: Any, key: str = "eval_dataset") -> None:
    if records is not None and not args.eval_data_is_public:
        problem = "would print what nobody paid for: a loss on private records"
        fix = "Evaluate on public records and say so: eval_data_is_public=True."
        raise ConfigError(problem, key=key, fix=fix)


def _check_parts(callbacks: Any, optimizers: Any) -> None:
    """Raise ConfigError for a part that a Trainer would accept now and fail with in a step."""
    listed = [] if callbacks is None else callbacks
    for one in listed if isinstance(listed, list | tuple) else [listed]:
        if not issubclass(one if isinstance(one, type) else type(one), TrainerCallback):
            raise ConfigError(
                f"holds a {type(one).__name__}", key="callbacks", fix="Give a list of callbacks."
            )
        _refuse_tools(one)
    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    pair = isinstance(optimizers, list | tuple) and len(optimizers) == len(kinds)
    for one, kind in zip(optimizers if pair else [optimizers] * 2, kinds, strict=True):
        if not isinstance(one, kind | None):
            fix = "Give (optimizer, scheduler), each of torch's or None."
            raise ConfigError(f"holds a {type(one).__name__}", key="optimizers", fix=fix)


def _refuse_tools(callback: Any) -> None:
    """Raise ConfigError for a callback with which transformers tells a tool about each step."""
    kind = callback if isinstance(callback, type) else type(callback)
    if any(base.__module__.startswith("transformers.integrations") for base in kind.__mro__):
        _, why, fix = ALLOWED["report_to"]
        raise ConfigError(f"a private run {why}", key="callbacks", value=kind.__name__, fix=fix)


def _sets_of(records: Any) -> dict[str, Any]:
    """Return name → set of evaluation; a set without a name has the name ""."""
    if records is None:
        return {}
    return records if isinstance(records, dict) else {"": records}


def _columns(records: Records, args: PrivateConfig) -> dict[str, str]:
    """Return the columns of the records. They decide which part the loss is on.

    Raises:
        ConfigError: the loss should be on a part that they don't have.
    """
    text = args.dataset_text_field
    named = {"text": text, "label": "label"} if args.labels else {"text": text}
    columns: Any = args.columns or (named if text != "text" else columns_of(records))
    for key, field, name in (
        ("completion_only_loss", "completion", "pairs of a prompt and a completion"),
        ("assistant_only_loss", "messages", "conversations"),
    ):
        if getattr(args, key) and field not in columns:
            fix = f"Leave it out, or name the column of the {field}."
            raise ConfigError(f"is for {name}", key=key, value=True, fix=fix)
    if "messages" in columns and not args.assistant_only_loss:
        columns = {"text": columns["messages"]}  # the text that the chat template writes
    return dict(columns)


@without_hub_code()
def _with_adapter(model: Any, peft_config: Any, args: PrivateConfig, quantization: Any) -> Any:
    """Return the model with its adapter.

    Raises:
        NotPrivateError: its configuration names code that is not part of transformers.
        ConfigError: the model has an adapter already, and another would take its names and be
            lost; or it was trained on a site's own records without privacy.
        ModelError: a layer's values are in no file, and would not be in the adapter's either.
    """
    set_seed(args.seed)
    source, drawn = str(model), set()
    if isinstance(model, str | Path):
        refuse_own(Path(model))
        with suppress(OSError):  # an adapter's folder has no configuration of a model
            refuse_code(str(model), PretrainedConfig.get_config_dict(model)[0])
        kind: Any = AutoModelForSequenceClassification if args.labels else AutoModelForCausalLM
        options = {"quantization_config": quantization} if quantization is not None else {}
        heads = {"num_labels": len(args.labels)} if args.labels else {}
        heads["output_loading_info"] = True
        model, loaded = kind.from_pretrained(model, **args.loading(), **options, **heads)
        drawn = {*loaded["missing_keys"], *(entry[0] for entry in loaded["mismatched_keys"])}
    if peft_config is None:
        return model
    from peft import get_peft_model

    if getattr(model, "peft_config", None):
        fix = "Leave it out to train that adapter, or merge that into the model first."
        raise ConfigError("is for a model that has an adapter already", key="peft_config", fix=fix)
    model = get_peft_model(model, peft_config)
    fix = "Name the layer in modules_to_save of peft_config."
    if peft_config.task_type is None:
        fix = 'Give peft_config task_type="SEQ_CLS", or name the layer in its modules_to_save.'
    check_saved(model, drawn, source, fix)
    return model


def _tokenizer_of(model: Any, args: PrivateConfig) -> Any:
    from transformers import AutoTokenizer

    name = getattr(getattr(model, "config", None), "name_or_path", None)
    revision = args.loading().get("revision", "main")
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
    except Exception:  # each kind of tokenizer has errors of its own
        raise ModelError(
            f"No tokenizer of {name!r} was found. Give one with processing_class."
        ) from None
