"""What a federation file leaves out comes from the table, for its model and its ε."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv import defaults
from fedpriv.base_model import WEIGHTS
from fedpriv.config import load
from fedpriv.config.job import JobConfig
from fedpriv.config.load import load_job
from fedpriv.defaults import KEYS, TABLE, Defaults, defaults_for, rows_for
from fedpriv.errors import ConfigError
from fedpriv.models.config import LoraSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.usual import clip_norm_of
from fedpriv.public_update.config import OptimizerSection
from tests.peft_adapters import write_peft_adapter

Make = Callable[..., Any]
FILE = """
[job]
rounds = 2
[model]
name = "{name}"
[evaluation]
data = "held-out.jsonl"
[[sites]]
name = "a"
data = "a.jsonl"
size = 24
epsilon = 9.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        path = tmp_path / "federation.toml"
        path.write_text(FILE.format(name=name))
        return path

    return make


def settings_of(job: Any) -> dict[str, float]:
    return {key: getattr(getattr(job, table), key) for key, table in KEYS.items()}


@pytest.mark.parametrize("labels", [True, False])
def test_the_table_is_in_order_and_covers_every_model(labels: bool) -> None:
    rows = [row for row in TABLE if row.labels is labels]
    sizes = [row.parameters for row in rows]
    assert sizes[-1] is None and None not in sizes[: sizes.index(None)]
    assert sizes == sorted(sizes, key=lambda size: float("inf") if size is None else size)
    for before, after in pairwise(rows):
        assert before.parameters != after.parameters or before.epsilon < after.epsilon


@given(st.booleans(), st.floats(1, 1e12), st.floats(1e-3, 1e3))
def test_the_row_is_of_the_least_size_and_the_largest_epsilon_that_fit(
    labels: bool, parameters: float, epsilon: float
) -> None:
    row = defaults_for(labels, parameters, epsilon)
    assert row.labels is labels and row.clip_norm == clip_norm_of(labels)
    assert row.parameters is None or parameters <= row.parameters
    table = [r for r in TABLE if r.labels is labels]
    smaller = {
        r.parameters for r in table if r.parameters is not None and r.parameters >= parameters
    }
    assert row.parameters == min(smaller, default=None)
    same = [r.epsilon for r in table if r.parameters == row.parameters]
    assert row.epsilon == max((e for e in same if e <= epsilon), default=min(same))
    assert row in rows_for(epsilon)


def test_what_is_left_out_is_filled_in_and_what_is_written_stays(
    file: Callable[[str], Path], model_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, large = (
        Defaults(False, size, 1.0, rate, r, 3.0, lr, "made up")
        for size, rate, r, lr in ((1e6, 0.3, 2, 0.25), (None, 0.4, 6, 0.125))
    )
    classifier = Defaults(True, None, 1.0, 0.5, 2, 3.0, 0.75, "made up")
    monkeypatch.setattr(defaults, "TABLE", (tiny, large, classifier))
    path = file(str(model_folder("llama")))
    assert settings_of(load_job(path)) == {
        "clip_norm": 0.1, "sample_rate": 0.3, "r": 2, "alpha": 3.0, "lr": 0.25,
    }  # fmt: skip
    written = load_job(path, ["optimizer.lr=0.7", "lora.r=5"])
    assert settings_of(written) == settings_of(load_job(path)) | {"lr": 0.7, "r": 5, "alpha": 7.5}
    assert settings_of(load_job(file("embedded")))["lr"] == 0.125
    labelled = [
        "model.task=classification",
        'model.labels=["a", "b"]',
        'data.columns={text="t", label="l"}',
    ]
    found = settings_of(load_job(path, labelled))
    assert (found["lr"], found["clip_norm"]) == (0.75, 10)
    assert settings_of(load_job(path, [*labelled, "privacy.clip_norm=3"]))["clip_norm"] == 3


def test_without_its_model_there_are_no_defaults(
    file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "parameters_of", lambda name: None)
    with pytest.raises(ConfigError, match="no safetensors here or at the hub") as caught:
        load_job(file("clinic/none"), ["lora.r=2", "lora.alpha=4", "privacy.clip_norm=1"])
    assert (caught.value.file, caught.value.key) == (tmp_path / "federation.toml", "model.name")
    assert caught.value.fix == "Correct it, or write down privacy.sample_rate, optimizer.lr."
    values = {"privacy.clip_norm": 1, "privacy.sample_rate": 0.1, "optimizer.lr": 0.1}
    values |= {"lora.r": 2, "lora.alpha": 2}
    load_job(file("clinic/none"), [f"{key}={value}" for key, value in values.items()])


def test_a_rate_of_adamw_is_none_of_sgd(file: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="adamw") as caught:
        load_job(file("embedded"), ["optimizer.name=sgd"])
    assert caught.value.key == "optimizer.lr"
    assert load_job(file("embedded"), ["optimizer.name=sgd", "optimizer.lr=3"]).optimizer.lr == 3


def test_every_setting_of_the_table_is_one_of_a_federation_file() -> None:
    sections = {"privacy": PrivacySection, "lora": LoraSection, "optimizer": OptimizerSection}
    for key, table in KEYS.items():
        assert key in sections[table].model_fields  # type: ignore[attr-defined]
        for row in TABLE:
            sections[table].model_validate({key: getattr(row, key)})  # type: ignore[attr-defined]


def test_reading_a_file_loads_no_torch() -> None:
    code = "import sys; from fedpriv.config.load import load_job; load_job();"
    code += " print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


def test_a_section_made_in_python_has_the_row_for_language_models_of_any_size() -> None:
    made = {"privacy": PrivacySection(), "lora": LoraSection(), "optimizer": OptimizerSection()}
    row = next(row for row in TABLE if row.parameters is None and not row.labels)
    for key, table in KEYS.items():
        assert getattr(made[table], key) == getattr(row, key)


@pytest.fixture
def begun(
    file: Callable[[str], Path], model_folder: Make, tmp_path: Path
) -> Callable[..., JobConfig]:
    """Of a federation file whose adapter is in a folder beside it."""
    write_peft_adapter(tmp_path / "adapter", model_folder("llama"))
    path = file(str(model_folder("llama")))
    return lambda *overrides: load_job(path, ["model.begin=adapter", *overrides])


def test_an_adapter_that_is_continued_says_its_shape(begun: Callable[..., JobConfig]) -> None:
    job, expected = begun(), LoraSection(r=3, alpha=5, target_modules=("q_proj", "v_proj"))
    assert job.lora == expected
    assert job.model.begin is not None and Path(job.model.begin).is_absolute()
    again = ["lora.r=3", "lora.alpha=5", 'lora.target_modules=["v_proj","q_proj"]']
    assert begun(*again).lora == expected
    assert begun("lora.frozen_a=true").lora == expected.model_copy(update={"frozen_a": True})
    assert job.optimizer.lr == defaults_for(False, 1.0, 4.0).lr  # all else is the table's


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("lora.r=4", "lora.r"),
        ("lora.alpha=4", "lora.alpha"),
        ('lora.target_modules=["q_proj"]', "lora.target_modules"),
        ('lora.target_modules="auto"', "lora.target_modules"),
        ('lora.modules_to_save=["lm_head"]', "lora.modules_to_save"),
    ],
)
def test_a_shape_that_the_adapter_does_not_have_is_refused_by_name(
    begun: Callable[..., JobConfig], typed: str, key: str
) -> None:
    with pytest.raises(ConfigError, match="in the adapter that model") as caught:
        begun(typed)
    assert caught.value.key == key and caught.value.file is not None
    assert begun(typed, "model.begin_as=merged").lora.r == (4 if key == "lora.r" else 2)


def test_what_is_wrong_with_an_adapter_is_told_with_the_file(
    begun: Callable[..., JobConfig], tmp_path: Path
) -> None:
    (tmp_path / "adapter" / WEIGHTS).unlink()
    with pytest.raises(ConfigError, match=f"has no {WEIGHTS}") as caught:
        begun()
    assert (caught.value.file, caught.value.key) == (tmp_path / "federation.toml", "model.begin")
    with pytest.raises(ConfigError, match="'merged' needs begin"):
        load_job(tmp_path / "federation.toml", ["model.begin_as=merged"])
