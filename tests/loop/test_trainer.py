"""A Trainer whose steps are private: what it trains, what it tells, what it refuses."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    TrainerCallback,
    TrainingArguments,
)
from transformers.integrations import TensorBoardCallback

from fedpriv.base_model import FACTS
from fedpriv.errors import ConfigError, DataError, ModelError, SlotError
from fedpriv.loop.arguments import PrivateConfig
from fedpriv.loop.step import PrivateStep
from fedpriv.loop.trainer import PrivateTrainer
from fedpriv.models.vector import TrainableVector
from fedpriv.names import OWN_KINDS
from fedpriv.plain_training.scores import Scores
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.mechanism import execution
from fedpriv.privacy.mechanism.csprng import InsecureRandomness
from tests.small_models import small_config

Make = Callable[..., Any]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture
def config(tmp_path: Path) -> Make:
    """A factory of arguments for four steps on a CPU."""

    def make(**changes: Any) -> PrivateConfig:
        settings = {
            "output_dir": str(tmp_path / "out"),
            "use_cpu": True,
            "disable_tqdm": True,
            "noise_multiplier": 1.0,
            "delta": 1e-3,
            "size": 50,
            "per_device_train_batch_size": 10,
            "max_steps": 4,
            "clip_norm": 0.02,
            "max_length": 64,
            "max_records_per_unit": 1,
            "save_strategy": "no",
            "logging_steps": 1,
        }
        return PrivateConfig(**{**settings, **changes})

    return make


@pytest.fixture
def trainer(lora: Make, byte_tokenizer: Any, notes: Any, config: Make) -> Iterator[Make]:
    """A factory of trainers, which are closed when the test is over."""
    made = []

    def make(records: Any = None, model: Any = None, **changes: Any) -> PrivateTrainer:
        given = {k: changes.pop(k) for k in ("eval_dataset", "callbacks") if k in changes}
        given |= {k: changes.pop(k) for k in ("peft_config", "optimizers") if k in changes}
        tokenizer = changes.pop("processing_class", byte_tokenizer)
        records = notes if records is None else records
        found = PrivateTrainer(
            model or lora(), config(**changes), records, processing_class=tokenizer, **given
        )
        made.append(found)
        return found

    yield make
    for one in made:
        one.private.close()


@pytest.mark.slow
def test_a_script_for_trl_with_two_other_lines(
    model_folder: Make, byte_tokenizer: Any, config: Make, tmp_path: Path, trainer: Make
) -> None:
    """From the name of a model and a data set to an adapter that peft loads."""
    records = Dataset.from_list(
        [{"prompt": f"patient {i} has", "completion": f" fever {i}"} for i in range(40)]
    )
    own = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    made = trainer(records, str(model_folder("llama")), peft_config=own, learning_rate=1e-2)
    before = TrainableVector(made.model).read()
    made.train()
    assert not np.array_equal(TrainableVector(made.model).read(), before)
    made.save_model(str(tmp_path / "adapter"))
    base = AutoModelForCausalLM.from_pretrained(model_folder("llama"))
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    assert np.array_equal(TrainableVector(loaded).read(), TrainableVector(made.model).read())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "messages", "answers", "pairs", "note", "labels"])
def test_the_formats_of_trl(
    trainer: Make, byte_tokenizer: Any, model_folder: Make, kind: str
) -> None:
    tokenizer = copy.deepcopy(byte_tokenizer)
    tokenizer.chat_template = TEMPLATE
    learned = {
        "messages": "ser: fever?\nassistant: yes\n",  # nothing predicts the first token
        "answers": "yes\n",
        "pairs": "yes\n",
    }
    changes: dict[str, Any] = {"processing_class": tokenizer, "max_steps": 1}
    talk = [{"role": "user", "content": "fever?"}, {"role": "assistant", "content": "yes"}]
    if kind in ("messages", "answers"):
        rows: list[Any] = [{"messages": talk}] * 20
        changes["assistant_only_loss"] = kind == "answers"
    elif kind == "pairs":
        rows = [{"prompt": talk[:1], "completion": talk[1:]}] * 20
    elif kind == "note":
        rows, changes["dataset_text_field"] = [{"note": f"fever {i}"} for i in range(20)], "note"
    else:
        rows = [{"text": f"fever {i}"} for i in range(20)]
    if kind == "labels":
        rows = [{**row, "label": i % 2} for i, row in enumerate(rows)]
        changes |= {"labels": ["0", "1"], "peft_config": LoraConfig(
            r=2, target_modules=["query"], task_type="SEQ_CLS")}  # fmt: skip
        model: Any = AutoModelForSequenceClassification.from_pretrained(model_folder("bert"))
    else:
        model = None
    made = trainer(Dataset.from_list(rows), model, **changes)
    made.train()
    assert made.private.taken == 1
    units = list(made.private._population.units)
    assert all(len(unit) == 1 for unit in units)
    if kind in learned:
        example = units[0][0]
        kept = [token for token in example.labels if token != -100]
        assert tokenizer.decode(kept) == learned[kind]


def test_it_is_the_loop_by_hand(
    trainer: Make,
    lora: Make,
    byte_tokenizer: Any,
    notes: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the same draws: optimiser, schedule and nothing else happen between two steps."""
    monkeypatch.setattr(PrivateStep, "_csprng", lambda self, slot: InsecureRandomness(1, slot))
    monkeypatch.setattr(execution, "require_secret", lambda *_: None)
    made = trainer(optim="sgd", learning_rate=0.5, lr_scheduler_type="constant")
    made.train()
    model = lora()
    step = PrivateStep(
        model,
        byte_tokenizer,
        notes,
        noise_multiplier=1.0,
        delta=1e-3,
        size=50,
        batch=10,
        steps=4,
        clip_norm=0.02,
        max_length=64,
        max_records_per_unit=1,
    )
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    while step.left:
        step.backward()
        optimizer.step()
        optimizer.zero_grad()
    step.close()
    expected = TrainableVector(model).read()
    assert np.abs(TrainableVector(made.model).read() - expected).max() < 1e-6
    assert np.abs(expected - TrainableVector(lora()).read()).max() > 0.002


@pytest.mark.slow
def test_the_records_go_nowhere_but_into_the_steps(
    trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the data loader nor a batch of the Trainer holds one, and no loss is told."""
    made = trainer()
    batches = list(made.get_train_dataloader())
    assert batches == [{}] * 5  # as many as draw each unit once
    result = made.train()
    assert math.isnan(result.training_loss)
    told = {key for row in made.state.log_history for key in row}
    assert told == {"epoch", "epsilon", "epsilon_planned", "grad_norm", "learning_rate", "step"}
    assert [row["epsilon"] for row in made.state.log_history][3] == made.private.epsilon
    assert made.private.epsilon == made.private.epsilon_planned


@pytest.mark.slow
def test_no_file_says_how_long_steps_took(trainer: Make, tmp_path: Path) -> None:
    """What a script writes as it always does, and the dates of what a Trainer writes itself."""
    made = trainer(save_strategy="steps", save_steps=1, save_total_limit=3)
    made.args.include_num_input_tokens_seen = "all"  # as a script may change it later
    made.save_metrics("train", made.train().metrics)
    made.save_state()
    out = tmp_path / "out"
    for file in (*out.glob("*.json"), *out.glob("*/trainer_state.json")):
        assert not re.search('runtime|per_second|flos": [1-9]', file.read_text())
    assert len(list(out.glob("*.json"))) == 3
    folders = sorted(out.glob("checkpoint-*"))
    assert [folder.name for folder in folders] == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
    for step, folder in enumerate(folders, 2):
        paths = [folder, *folder.rglob("*")]
        assert len(paths) > 5 and {path.stat().st_mtime for path in paths} == {step}


class Told(TensorBoardCallback):  # type: ignore[misc]
    """A tool's callback, changed by whoever writes the script."""

    def __init__(self) -> None:
        pass


def test_no_tool_is_told_of_steps(trainer: Make) -> None:
    for tool in (Told, Told()):
        with pytest.raises(ConfigError, match=r"callbacks: a private run tells no tool.*Told"):
            trainer(callbacks=[tool])
    made = trainer()
    with pytest.raises(ConfigError, match="tells no tool"):
        made.add_callback(Told())
    made.callback_handler.add_callback(Told())
    with pytest.raises(ConfigError, match="tells no tool"):
        made.train()
    made.add_callback(Stop)
    assert made.private.taken == 0


def test_steps_are_those_of_the_epochs_in_expectation(trainer: Make) -> None:
    made = trainer(max_steps=-1, num_train_epochs=2)
    assert (made.private.plan.sample_rate, made.private.plan.steps) == (0.2, 10)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [2, 2.3])
def test_an_epoch_is_as_many_steps_as_draw_each_unit_once(
    trainer: Make, notes: Any, tmp_path: Path, epochs: float
) -> None:
    said: Any = {"eval_data_is_public": True, "eval_strategy": "epoch", "save_strategy": "epoch"}
    public = pandas.DataFrame({"text": ["a public note about fever"]})
    steps = {"max_steps": -1, "num_train_epochs": epochs, "save_total_limit": 5}
    made = trainer(pandas.DataFrame(notes), eval_dataset=public, **said, **steps)
    made.train()
    found = [(row["step"], row["epoch"]) for row in made.state.log_history if "eval_loss" in row]
    ends = [5, 10, 12][: math.ceil(epochs)]
    assert found == [(step, step / 5) for step in ends]
    assert {int(p.name[11:]) for p in (tmp_path / "out").glob("checkpoint-*")} == {*ends}


class StopSoon(TrainerCallback):
    """Ends a training early, as by a loss on public records."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 2


def test_one_that_ends_early_claims_what_was_planned(
    trainer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    made = trainer(callbacks=[StopSoon])
    made.train()
    last, planned = made.state.log_history[-1], made.private.epsilon_planned
    assert last["epsilon"] < last["epsilon_planned"] == planned
    assert f"has 2 of the 4 steps of its plan. The claim is the plan's, ε = {planned:.3f}" in (
        caplog.text
    )
    with pytest.raises(ConfigError, match="2 of 4 steps were taken"):
        made.train()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("packing", True, "several records into a window"),
        ("padding_free", True, "join the records"),
        ("completion_only_loss", False, "loss on the completion alone"),
        ("gradient_accumulation_steps", 2, "one secret Poisson sample"),
        ("train_sampling_strategy", "group_by_length", "one secret Poisson sample"),
        ("label_smoothing_factor", 0.1, "another loss"),
        ("neftune_noise_alpha", 5.0, "public seed"),
        ("fp16", True, "scale the loss"),
        ("bf16", True, "number format of the model"),
        ("activation_offloading", True, "no hook"),
        ("data_seed", 1, "in secret"),
        ("torch_compile", True, "compiling"),
        ("auto_find_batch_size", True, "one secret Poisson sample"),
        ("skip_memory_metrics", False, "how many records were drawn"),
        ("report_to", "tensorboard", "how many records were drawn"),
        ("push_to_hub", True, "how many records were drawn"),
        ("include_num_input_tokens_seen", True, "counts no tokens"),
    ],
)
def test_arguments_are_refused_by_name(config: Make, name: str, value: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as found:
        config(**{name: value})
    assert str(found.value).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", None),
        ("per_device_train_batch_size", None),
        ("per_device_train_batch_size", "ten"),
        ("learning_rate", float("nan")),
        ("num_train_epochs", float("inf")),
        ("size", 1.5),
        ("labels", "ab"),
        ("labels", None),
        ("columns", ["text"]),
        ("ledger", 3),
        ("lr_scheduler_type", "no such thing"),
        ("optim", "no such thing"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(config: Make, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as found:
        config(**{name: value})
    assert str(found.value).startswith((f"{name}: ", "args: transformers refuses it"))


@pytest.mark.parametrize("name", ["per_device_train_batch_size", "num_train_epochs"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_plan_without_steps_is_refused(trainer: Make, name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name}: must be above 0"):
        trainer(**{"max_steps": -1, name: value})


@pytest.mark.slow
def test_a_folder_and_labels_are_a_classifier(
    trainer: Make, model_folder: Make, notes: Any, tmp_path: Path
) -> None:
    rows = [{"text": row["text"], "label": "ab"[i % 2]} for i, row in enumerate(notes)]
    config = LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS")
    given = {"labels": ["a", "b"], "peft_config": config, "max_steps": 1}
    made = trainer(rows, str(model_folder("bert")), **given)
    made.train()
    assert made.private.taken == 1
    made = trainer(Dataset.from_list(rows), model_folder("bert"), **given)
    with pytest.raises(ConfigError, match="transformers refuses it"):
        trainer(rows, str(tmp_path), **given)


@pytest.mark.slow
def test_a_head_that_was_drawn_is_in_the_adapter(
    trainer: Make, byte_tokenizer: Any, notes: Any, tmp_path: Path
) -> None:
    """Or whoever loads the adapter would draw another, and get other answers."""
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(small_config("distilbert")).save_pretrained(tmp_path / "base")
    byte_tokenizer.save_pretrained(tmp_path / "base")
    rows = [{"text": row["text"], "label": "ab"[i % 2]} for i, row in enumerate(notes)]

    def made(model: Any = tmp_path / "base", **options: Any) -> PrivateTrainer:
        config = LoraConfig(r=2, target_modules=["q_lin"], **options)
        found = trainer(rows, model, labels=["a", "b"], peft_config=config, max_steps=1)
        assert isinstance(found, PrivateTrainer)
        return found

    with pytest.raises(ModelError, match=r"classifier\.bias, .* was in no file") as caught:
        made()
    assert 'task_type="SEQ_CLS"' in str(caught.value) and "modules_to_save" in str(caught.value)
    for options in ({"task_type": "SEQ_CLS"}, {"modules_to_save": ["classifier"]}):
        trained = made(**options)
        trained.train()
        trained.save_model(str(tmp_path / "adapter"))
        ids = torch.arange(5, 15)[None]
        found = trained.private._worker.model.eval()(ids).logits
        for seed in (1, 2):
            torch.manual_seed(seed)
            base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
            again = PeftModel.from_pretrained(base, tmp_path / "adapter")(ids).logits
            assert torch.allclose(again, found, rtol=1e-4, atol=1e-7)


@pytest.mark.usefixtures("new_accelerator")
def test_mixed_precision_of_the_environment_is_refused(
    trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `accelerate launch --mixed_precision bf16` sets it; a Trainer's own accelerator obeys."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(ConfigError, match=r"mixed_precision: is not used \(got 'bf16'\)"):
        trainer()


def test_a_second_adapter_is_refused(trainer: Make, lora: Make) -> None:
    """It would be saved under the names of the first, and load as nothing."""
    own = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with pytest.raises(ConfigError, match="peft_config: is for a model that has an adapter"):
        trainer(model=lora(), peft_config=own)
    inside = lora().get_base_model()  # with layers of its adapter still in it
    with pytest.raises(ConfigError, match="peft_config"):
        trainer(model=inside, peft_config=own)


def test_what_a_site_trained_for_itself_is_no_beginning(
    trainer: Make, lora: Make, tmp_path: Path
) -> None:
    """Everything made of it would depend on records that nobody paid for."""
    lora().save_pretrained(tmp_path)
    (tmp_path / FACTS).write_text(json.dumps({"kind": OWN_KINDS[0]}))
    for folder in (tmp_path, str(tmp_path)):
        with pytest.raises(ConfigError, match="on a site's own records without privacy"):
            trainer(model=folder)


def test_a_run_that_would_learn_nothing_is_refused(trainer: Make) -> None:
    with pytest.raises(DataError, match="20 of 20 records give no example"):
        trainer([{"text": ""}] * 20)
    assert trainer([{"text": "fever"}, {"text": ""}], max_empty=0.5).private.taken == 0


@pytest.mark.parametrize(
    ("key", "why"),
    [("completion_only_loss", "pairs of a prompt"), ("assistant_only_loss", "conversations")],
)
def test_a_loss_on_a_part_that_no_record_has_is_refused(trainer: Make, key: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: is for {why}"):
        trainer(**{key: True})


def test_a_window_is_as_long_as_the_model_reads_where_nobody_says(
    trainer: Make, model_folder: Make, config: Make, notes: Any, byte_tokenizer: Any, lora: Make
) -> None:
    typed = config()
    left_out = PrivateConfig(
        **{name: getattr(typed, name) for name in ("output_dir", "use_cpu", "delta", "size")},
        noise_multiplier=1.0,
        max_steps=1,
    )
    assert left_out.max_length == 1024
    model = lora()
    made = PrivateTrainer(model, left_out, notes, processing_class=byte_tokenizer)
    made.private.close()
    reads = model.config.max_position_embeddings
    assert made.args.max_length == made.private._spec.max_length == min(1024, reads)
    with pytest.raises(ConfigError, match="tokens that the model can read"):
        trainer(max_length=reads + 1)


@pytest.mark.slow
def test_layers_are_computed_twice_where_asked_and_give_the_same(
    trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrivateStep, "_csprng", lambda self, slot: InsecureRandomness(1, slot))
    monkeypatch.setattr(execution, "require_secret", lambda *_: None)
    calls: list[int] = []
    found = []
    for asked in (False, True):
        made = trainer(gradient_checkpointing=asked, max_steps=1, optim="sgd", learning_rate=0.5)
        [layer, *_] = made.model.base_model.model.model.layers
        counted = type(layer.mlp).forward

        def count(self: Any, *given: Any, counted: Any = counted) -> Any:
            calls.append(1)
            return counted(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(type(layer.mlp), "forward", count)
            calls.clear()
            made.train()
        found.append((len(calls), TrainableVector(made.model).read()))
        assert "forward" not in vars(layer)
    assert found[1][0] == 2 * found[0][0] > 0
    assert np.array_equal(found[0][1], found[1][1])


def test_a_named_model_is_loaded_as_its_options_say(trainer: Make, model_folder: Make) -> None:
    own = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    given: Any = {"peft_config": own, "model_init_kwargs": {"torch_dtype": "bfloat16"}}
    made = trainer(model=str(model_folder("llama")), **given)
    assert made.private._worker.recipe.compute.dtype == "bfloat16"
    first = TrainableVector(made.model).read()
    again = trainer(model=str(model_folder("llama")), **given)
    assert np.array_equal(first, TrainableVector(again.model).read())  # of the same seed


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("data_collator", "secret Poisson sample"),
        ("compute_loss_func", "a mean over all of its tokens"),
        ("compute_metrics", "stated to be public"),
        ("model_init", "paid by the same people"),
        ("formatting_func", "public settings"),
    ],
)
def test_what_else_a_trainer_takes_is_refused_by_name(
    lora: Make, notes: Any, config: Make, name: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as found:
        PrivateTrainer(lora(), config(), notes, **{name: lambda *_: None})
    assert str(found.value).startswith(f"{name}: ")
    with pytest.raises(TypeError, match="no argument 'sampler'"):
        PrivateTrainer(lora(), config(), notes, sampler=None)


def test_it_wants_its_own_arguments(lora: Make, notes: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="PrivateConfig"):
        PrivateTrainer(lora(), TrainingArguments(output_dir=str(tmp_path)), notes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_evaluation_needs_the_word_that_its_records_are_public(trainer: Make, notes: Any) -> None:
    public = [{"text": "a public note about fever"}]
    with pytest.raises(ConfigError, match=r"eval_dataset.*loss on private records"):
        trainer(eval_dataset=public)
    said: Any = {"eval_data_is_public": True, "eval_strategy": "steps", "eval_steps": 2}
    made = trainer(eval_dataset=public, **said)
    made.train()
    assert len([row for row in made.state.log_history if "eval_loss" in row]) == 2
    with pytest.raises(DataError, match="among those that train"):
        made.evaluate(notes[:2])
    made = trainer(eval_dataset={"near": public, "far": [{"text": "another town"}]}, **said)
    found = made.evaluate()
    assert found.keys() >= {"eval_near_loss", "eval_far_loss", "eval_far_accuracy"}
    assert found["eval_near_loss"] == made.evaluate("near")["eval_loss"]
    assert made.evaluate({"x": public})["eval_x_loss"] == found["eval_near_loss"]
    with pytest.raises(ConfigError, match="eval_dataset: is missing"):
        made.evaluate("nowhere")
    with pytest.raises(ConfigError, match="loss on private records"):
        trainer().evaluate(public)


@pytest.mark.slow
def test_a_model_that_ends_worse_than_it_began_is_told(
    trainer: Make, notes: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = pandas.DataFrame({"text": ["a public note about fever"]})
    said: Any = {"eval_data_is_public": True, "eval_strategy": "steps", "eval_steps": 4}
    losses = iter([0.693, 2.175, 2.175, 0.693])
    monkeypatch.setattr(PrivateStep, "evaluate", lambda *_, **__: Scores(next(losses), 0.5))
    for told in (1, 0):
        caplog.clear()
        made = trainer(pandas.DataFrame(notes), eval_dataset=public, eval_on_start=True, **said)
        made.train()
        words = [r.getMessage() for r in caplog.records if "is worse than before" in r.message]
        assert len(words) == told
        assert not told or "was 0.693 and is 2.175" in words[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_steps", "options", "told"),
    [
        ((2.0001, 2.9), {}, None),  # the base was never measured
        ((1.5, 1.9), {"eval_on_start": True}, None),  # of 2: the last is better than the base
        ((1.5, 2.9), {"eval_on_start": True}, "was 2.000 and is 2.900"),
        ((1.5, 2.9), {"eval_on_start": True, "load_best_model_at_end": True}, None),
        ((2.5, 2.9), {"eval_on_start": True, "load_best_model_at_end": True}, "is 2.500"),
        ((2.9, 1.5), {"eval_on_start": True, "eval_steps": 3}, None),
    ],
)
def test_what_is_told_is_of_the_base_and_of_the_model_that_is_there(
    trainer: Make,
    notes: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    of_steps: Sequence[float],
    options: dict[str, Any],
    told: str | None,
) -> None:
    said: Any = {"eval_data_is_public": True, "eval_strategy": "steps", "eval_steps": 2}
    if "load_best_model_at_end" in options:
        said |= {"save_strategy": "steps", "save_steps": 2}
    losses = iter([2.0] * options.get("eval_on_start", False) + [*of_steps])
    monkeypatch.setattr(PrivateStep, "evaluate", lambda *_, **__: Scores(next(losses), 0.5))
    public = pandas.DataFrame({"text": ["a public note about fever"]})
    trainer(pandas.DataFrame(notes), eval_dataset=public, **said | options).train()
    words = [r.getMessage() for r in caplog.records if "is worse than before" in r.message]
    assert len(words) == (told is not None) and (told is None or told in words[0])


def test_predictions_need_that_word_too(trainer: Make) -> None:
    examples = [{"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1], "labels": [5, 6, 7]}] * 2
    with pytest.raises(ConfigError, match=r"test_dataset.*loss on private records"):
        trainer().predict(examples)
    found = trainer(eval_data_is_public=True).predict(examples)
    assert found.metrics is not None and found.metrics["test_loss"] > 0


class Stop(TrainerCallback):
    """As a power cut would, but after a checkpoint."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_it_goes_on_from_a_checkpoint_and_pays_nothing_twice(trainer: Make, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.create(path, Terms("0" * 32, 50, "record", 1, 1e-3, 50, simulated=False)).close()
    stated: Any = {"ledger": str(path), "job": "notes", "size": None, "delta": None}
    stated |= {"save_strategy": "steps", "save_steps": 2}
    first = trainer(**stated, callbacks=[Stop()])
    with pytest.raises(KeyboardInterrupt):
        first.train()
    first.private.backward()  # a step that the checkpoint knows nothing of
    first.private.close()
    values = TrainableVector(first.model).read()
    again = trainer(**stated)
    assert again.private.left == 1
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 3 and not again.private.left
    assert not np.array_equal(TrainableVector(again.model).read(), values)
    state = json.loads((tmp_path / "out/checkpoint-2/trainer_state.json").read_text())
    assert "loss" not in {key for row in state["log_history"] for key in row}
    with pytest.raises(SlotError, match="All 4 steps"):
        again.train()


def test_it_goes_on_only_where_an_account_is_left(trainer: Make) -> None:
    with pytest.raises(ConfigError, match="account was not kept"):
        trainer().train(resume_from_checkpoint=True)
