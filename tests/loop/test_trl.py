"""Held against trl itself: its arguments, its defaults, and a script in the manner of its own."""

from __future__ import annotations

import runpy
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import signature
from pathlib import Path
from typing import Any

import make_trl_table as table
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import TrainingArguments

from fedpriv.errors import ConfigError
from fedpriv.loop.arguments import ALLOWED, OF_A_TRAINER, LeftOut, PrivateConfig
from fedpriv.loop.trainer import PrivateTrainer

with warnings.catch_warnings():  # of its own, about what comes next
    warnings.simplefilter("ignore")
    from trl import SFTConfig, SFTTrainer, TrlParser

Make = Callable[..., Any]
SCRIPT = Path(__file__).with_name("sft_script.py")
FIELDS = {field.name: field for field in fields(SFTConfig) if field.init}
TAKEN = sorted(set(FIELDS) - set(ALLOWED))
# Another valid value than the default, where its type does not say one.
OTHERS: dict[str, Any] = {
    "output_dir": "elsewhere",
    "lr_scheduler_type": "cosine",
    "lr_scheduler_kwargs": {"num_cycles": 1},
    "optim": "adafactor",
    "optim_args": "eps=1e-8",
    "optim_target_modules": ["q_proj"],
    "tf32": False,
    "activation_checkpointing": True,
    "activation_checkpointing_kwargs": {"every_n_layers": 2},
    "gradient_checkpointing": False,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "liger_kernel_config": {"rope": True},
    "logging_strategy": "epoch",
    "log_level": "info",
    "log_level_replica": "info",
    "eval_steps": 3,
    "include_for_metrics": ["inputs"],
    "save_strategy": "no",
    "hub_strategy": "end",
    "load_best_model_at_end": False,
    "greater_is_better": False,
    "fsdp_config": {"min_num_params": 1},
    "dataloader_prefetch_factor": None,
    "model_init_kwargs": {"dtype": "bfloat16", "revision": "main", "attn_implementation": None},
    "max_length": 512,
    "packing_strategy": "wrapped",
    "local_rank": -1,
    "label_names": ["labels"],
    "disable_tqdm": True,
    "eval_strategy": "steps",
}
# A value that is refused, where one of another type would be refused for its type.
REFUSED: dict[str, Any] = {
    "completion_only_loss": False,
    "skip_memory_metrics": False,
    "gradient_accumulation_steps": 2,
    "accelerator_config": {"split_batches": True},
    "train_sampling_strategy": "group_by_length",
    "data_seed": 1,
    "label_smoothing_factor": 0.1,
    "neftune_noise_alpha": 5.0,
    "torch_compile_backend": "inductor",
    "torch_compile_mode": "default",
    "fsdp": "full_shard",
    "deepspeed": {"zero_optimization": {"stage": 2}},
    "parallelism_config": object(),
    "ddp_backend": "gloo",
    "debug": "underflow_overflow",
    "report_to": "tensorboard",
    "include_num_input_tokens_seen": "all",
    "loss_type": "dft",
    "router_aux_loss_coef": 0.1,
    "truncation_mode": "keep_end",
    "dataset_kwargs": {"skip_prepare_dataset": True},
    "chat_template_path": "template.jinja",
    "eos_token": "</s>",
    "pad_token": "</s>",
}


def config(**changes: Any) -> PrivateConfig:
    stated = {"output_dir": "out", "use_cpu": True, "epsilon": 4, "delta": 1e-5, "size": 60}
    return PrivateConfig(**{**stated, **changes})


def default_of(kind: Any, name: str) -> Any:
    [field] = [field for field in fields(kind) if field.name == name]
    return field.default if field.default_factory is MISSING else field.default_factory()


def another(name: str) -> Any:
    value = default_of(SFTConfig, name)
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return {int | None: 3, bool | None: True}.get(FIELDS[name].type, "something")


def test_each_argument_is_once_on_the_page() -> None:
    groups = [table.MEANINGS, table.without_effect(), table.AS_THEY_ARE.split(), ALLOWED]
    found = Counter(name for group in groups for name in group)
    assert set(FIELDS) <= set(found) and max(found.values()) == 1


@pytest.mark.parametrize("name", FIELDS)
def test_each_argument_is_taken_at_the_default_of_trl(name: str) -> None:
    config(**{name: default_of(SFTConfig, name)})


@pytest.mark.parametrize("name", TAKEN)
def test_another_value_is_taken(name: str) -> None:
    value = another(name)
    made = config(**{name: value})
    if name not in table.without_effect() and name != "max_grad_norm":
        assert getattr(made, name) == value or str(value) in str(getattr(made, name))


@pytest.mark.parametrize("name", sorted(set(FIELDS) & set(ALLOWED)))
def test_what_has_no_place_is_refused_by_name_with_the_reason(name: str) -> None:
    value = REFUSED.get(name, True)
    with pytest.raises(ConfigError) as found:
        config(**{name: value})
    assert str(found.value).startswith(f"{name}: a private run {ALLOWED[name][1]}")
    assert found.value.fix


def test_defaults_are_those_of_trl_or_on_the_page() -> None:
    own = {field.name: field for field in fields(PrivateConfig)}
    differ = {n for n in FIELDS if default_of(SFTConfig, n) != default_of(PrivateConfig, n)}
    assert own.keys() >= FIELDS.keys()
    assert differ <= set(table.DEFAULTS)
    assert config().learning_rate == 2e-5 and config().logging_steps == 10


def test_arguments_of_the_trainer_are_taken_or_on_the_page() -> None:
    taken = set(signature(PrivateTrainer.__init__).parameters)
    asked = set(signature(SFTTrainer.__init__).parameters)
    assert asked <= taken | set(OF_A_TRAINER)


@pytest.mark.parametrize(
    ("typed", "clip"),
    [
        ({}, 0.1),
        ({"labels": ["a", "b"]}, 10.0),
        ({"max_grad_norm": 1.0}, 1.0),
        ({"clip_norm": 0.5}, 0.5),
        ({"clip_norm": 0.5, "max_grad_norm": 0.5}, 0.5),
    ],
)
def test_the_clip_norm_is_the_one_that_is_typed(typed: dict[str, Any], clip: float) -> None:
    made = config(**typed)
    assert (made.clip_norm, made.max_grad_norm) == (clip, 0)  # the Trainer clips no second time
    again = config(clip_norm=made.clip_norm, max_grad_norm=made.max_grad_norm)
    assert again.clip_norm == clip


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ({"max_grad_norm": 1.0, "clip_norm": 0.5}, "another name of clip_norm"),
        ({"max_grad_norm": 0.0}, "would clip nothing"),
        ({"optim": "galore_adamw_layerwise"}, "steps by hooks"),
        ({"model_init_kwargs": {"attn_implementation": "someone/kernel"}}, "not an option"),
        ({"model_init_kwargs": {"trust_remote_code": True}}, "not an option"),
        ({"model_init_kwargs": {"colour": "red"}}, "not an option"),
        ({"model_init_kwargs": "dtype"}, "not an option"),
    ],
)
def test_values_that_contradict_are_refused_by_name(typed: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as found:
        config(**typed)
    assert str(found.value).startswith(next(iter(typed)))


@pytest.mark.slow
@pytest.mark.parametrize("ours", [False, True])
def test_a_script_for_trl_runs_with_two_other_lines(
    ours: bool,
    model_folder: Make,
    byte_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The script runs with trl; with two other lines it runs here, and gives the same files."""
    lines = SCRIPT.read_text().splitlines(keepends=True)
    if ours:
        changed = {
            "from trl import SFTConfig, SFTTrainer\n": "from fedpriv import PrivateConfig as"
            " SFTConfig, PrivateTrainer as SFTTrainer\n",
            '    output_dir="out",\n': '    output_dir="out", epsilon=8, delta=1e-3, size=40,'
            " eval_data_is_public=True,\n",
        }
        assert sum(line in changed for line in lines) == len(changed) == 2
        lines = [changed.get(line, line) for line in lines]
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "base"
    base.symlink_to(model_folder("llama"))
    rows = [
        {
            "prompt": [{"role": "user", "content": f"patient {i} has?"}],
            "completion": [{"role": "assistant", "content": f"fever {i % 3}"}],
        }
        for i in range(46)
    ]
    Dataset.from_list(rows[:40]).to_json("train.jsonl")
    Dataset.from_list(rows[40:]).to_json("test.jsonl")
    script = tmp_path / "script.py"
    script.write_text("".join(lines))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = runpy.run_path(str(script))
    trainer = found["trainer"]
    assert isinstance(trainer, PrivateTrainer if ours else SFTTrainer)
    assert trainer.state.global_step == 4
    logged = {key for row in trainer.state.log_history for key in row}
    assert logged >= {"eval_near_loss", "eval_far_loss", "learning_rate"}
    adapter = load_file(tmp_path / "out/adapter_model.safetensors")
    assert len(adapter) == 8
    assert all(bool(v.any()) and v.dtype == torch.float32 for v in adapter.values())


def test_the_command_line_of_a_script_for_trl_is_read() -> None:
    assert issubclass(PrivateConfig, TrainingArguments)
    line = "--output_dir x --epsilon 4 --use_cpu --labels a b --max_grad_norm 0.3 --columns"
    options = ['{"text": "note", "label": "kind"}', "--model_init_kwargs", '{"dtype": "bfloat16"}']
    [made] = TrlParser((PrivateConfig,)).parse_args_and_config([*line.split(), *options])
    assert (made.epsilon, made.clip_norm, made.labels) == (4, 0.3, ["a", "b"])
    assert made.columns == {"text": "note", "label": "kind"}
    assert made.loading()["dtype"] == "bfloat16"
    assert isinstance(made.max_length, LeftOut)
