"""The table of measured runs: what it holds, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import EMBEDDED
from fedpriv.errors import ConfigError
from fedpriv_forecasting.of_file import forecast
from fedpriv_forecasting.table import read_table
from tests.forecasting.made_up_runs import read, runs, table, write


def test_a_table_is_read_and_gains_are_by_site(tmp_path: Path) -> None:
    made = runs(lambda records, noise: 0.25, seeds=1)
    made[0]["own"]["federated"] = [1.5, 2.5, 2.0, 1.0]
    made[0]["all"] = {"alone": 3.0}  # for other readers
    found = read_table(write(tmp_path / "border.json", made))
    assert found.points[0].gains("federated") == (0.5, -0.5, 0.0, 1.0)
    assert found.points[1].gains("federated+fifth") == pytest.approx((0.25,) * 4)
    assert found.points[0].gains("federated", "alone+alone") is None
    assert found.points[0].gains("lora+fifth") is None
    assert found.points[0].gains("federated", "base", "outside") is None
    assert len(found.of("notes")) == len(made) and found.of("sentences") == []


def test_outside_sites_and_new_ones_are_read_by_question(tmp_path: Path) -> None:
    made = runs(seeds=1, others=lambda records, noise: 0.5)
    made[0]["outside"] |= {"lora": [2.0] * 3, "single": [3.75] * 3, "warm-start": [3.0] * 3}
    del made[0]["new"]["federated"]["16"]
    first, second, *_ = read_table(write(tmp_path / "border.json", made)).points
    assert first.gains("federated", "base", "outside") == (0.5,) * 3
    assert first.gains("federated", "single", "outside") == (0.25,) * 3
    assert first.gains("federated", "base", "0") == (0.5,) * 3
    assert first.gains("federated", "base", "64") == (0.25,) * 3
    assert first.gains("federated", "base", "16") is None
    assert second.gains("federated", "base", "16") == (0.25,) * 3
    assert second.gains("federated", "single", "outside") is None


def test_the_unit_is_that_of_the_run_or_else_of_its_kind() -> None:
    made = runs(seeds=1)
    made[0]["unit"] = "patient"
    for stated, patients in (("record", 1), ("patient_nbr", len(made))):
        found = read(made, settings={"privacy.unit": stated})
        assert len(found.of("notes", "patient")) == patients
        assert len(found.of("notes", "record")) == len(made) - patients
    assert len(read(made).of("notes", "patient")) == 1


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    broken = table(runs(seeds=1, others=lambda records, noise: 0.1))
    change(broken)
    return json.dumps(broken)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "object"),
        (changed(lambda t: t.pop("kinds")), "kinds: is missing"),
        (changed(lambda t: t["kinds"]["notes"].pop("model")), "kinds.notes.model: is missing"),
        (changed(lambda t: t.update(format=2)), "format"),
        (changed(lambda t: t.update(points=[])), "points: "),
        (changed(lambda t: t["points"][2].pop("records")), "points.2.records: is missing"),
        (changed(lambda t: t["points"][2].update(records=0)), "points.2.records"),
        (changed(lambda t: t["points"][2].update(noise_multiplier=-1)), "noise_multiplier"),
        (changed(lambda t: t["points"][0]["own"].update(alone=[float("nan")] * 4)), "finite"),
        (changed(lambda t: t["points"][0]["outside"].update(best=[1.0] * 3)), "outside.best"),
        (changed(lambda t: t["points"][0]["new"]["base"].update({"5": [1.0] * 3})), "new.base.5"),
        (changed(lambda t: t["points"][0]["outside"].update(base=[])), "outside.base"),
        (changed(lambda t: t["points"][0].update(unit="visit")), "points.0.unit"),
    ],
)
def test_a_broken_table_is_refused_by_name(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "border.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"border\.json") as refused:
        read_table(file)
    assert words in str(refused.value)


def test_a_table_that_is_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: no such file"):
        read_table(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="can't be read"):
        read_table(tmp_path)


def test_the_table_that_is_shipped_makes_a_forecast_of_the_federation_in_the_package() -> None:
    """That it is the measured one is tested with the benchmark that writes it."""
    found = forecast(EMBEDDED)
    assert found.kind == "notes" and found.sites == 64
    assert found.two_own is not None and found.two_own[0] > 0.05
    assert found.unlike == () and found.best == "federated+both"
    adapter = ["lora.r=2", "lora.alpha=4", "privacy.clip_norm=0.1"]
    larger = ["model.name=HuggingFaceTB/SmolLM2-135M", *adapter]
    answer = forecast(EMBEDDED, larger).answers[0]  # two kinds of the task: a wide range
    assert "base model" in answer.widened[0] and answer.verdict == "can't be told"
    begun = ["synthetic.data=public.jsonl", "synthetic.size=200", "synthetic.warm_start=16"]
    with pytest.raises(ConfigError, match=r"synthetic\.warm_start: begins at public records"):
        forecast(EMBEDDED, begun)
