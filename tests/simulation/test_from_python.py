"""`fedpriv.simulate`, from a data set in memory to an adapter."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pytest
from datasets import Dataset
from rich.console import Console

import fedpriv
from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, RunError
from fedpriv.progress import is_watched
from fedpriv.report import received
from fedpriv_simulation import from_python as module
from fedpriv_simulation.simulate import Outcome, Progress, simulate
from fedpriv_simulation.watching import watching

Make = Callable[..., Any]


def test_ten_lines_from_a_data_set_to_an_adapter(
    model_folder: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    notes = Dataset.from_list([{"text": f"patient {i} has fever {i % 7}"} for i in range(60)])
    parts = notes.train_test_split(0.2, seed=0)
    file = fedpriv.write_federation(
        tmp_path / "hospitals",
        parts["train"],
        parts["test"],
        sites=["north", "south"],
        size=24,
        job={"rounds": 2},
        model={"name": str(model_folder("llama")), "max_length": 32},
        lora={"r": 2, "alpha": 4},
        privacy={"epsilon": 4.0, "delta": 1e-3, "max_records_per_unit": 1},
    )
    run = fedpriv.simulate(file, out=tmp_path / "run")
    assert capfd.readouterr() == ("", "")  # nobody watches
    table = pandas.DataFrame(run.metrics)
    assert table["round"].tolist() == [1, 2]
    assert table["sites.north.epsilon_spent"].is_monotonic_increasing
    assert table["eval_loss"].dtype == float and run.before["eval_loss"] > 0
    assert run.worse is (run.metrics[-1]["eval_loss"] > run.before["eval_loss"])
    assert set(run.budget) == {"north", "south"}
    for report in run.budget.values():
        received.verify(report)
        assert 0 < report.epsilon_committed <= 4
    assert run.report.read_text().startswith("<!doctype html>")
    from peft import AutoPeftModelForCausalLM

    assert AutoPeftModelForCausalLM.from_pretrained(run.adapter).peft_config["default"].r == 2


@pytest.mark.slow
def test_an_interrupt_says_how_to_go_on_and_nothing_is_paid_twice(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def stopping(*_: Any) -> Iterator[Callable[..., Outcome]]:
        def after(metrics: dict[str, Any]) -> None:
            if metrics["round"] == 2:
                raise KeyboardInterrupt

        yield partial(simulate, progress=Progress(round_done=after))

    job, out = load_job(federation(rounds=3)), tmp_path / "run"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt) as stopped:
        patched.setattr(module, "watching", stopping)
        fedpriv.simulate(job, out=out)
    assert f"out={str(out)!r}, resume=True" in "".join(stopped.value.__notes__)
    run = fedpriv.simulate(job, out=out, resume=True)
    assert [row["round"] for row in run.metrics] == [1, 2, 3]
    report = run.budget["site-0"]
    assert sum(event.count for event in report.events) == 3
    assert report.epsilon_spent == pytest.approx(report.epsilon_committed)


def test_what_is_wrong_is_a_typed_error(federation: Make, tmp_path: Path) -> None:
    file = federation(rounds=1, public=False)
    with pytest.raises(RunError, match="name its folder"):
        fedpriv.simulate(file, resume=True)
    with pytest.raises(ConfigError, match="Give them to load_job"):
        fedpriv.simulate(load_job(file), ["job.rounds=2"])
    with pytest.raises(ConfigError, match=r"job\.data_is_public"):
        fedpriv.simulate(file, out=tmp_path / "run", insecure_seed=1)
    job = load_job(file)
    (file.parent / "site-1.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"test: sites\.site-1\.data: no such file"):
        fedpriv.simulate(job, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_bar_is_drawn_where_somebody_watches(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal and in a notebook; docs/tutorials has real ones."""
    job = load_job(federation(rounds=3))
    row = {"round": 2, "eval_loss": 4.5, "held_out": None}
    displayed: list[Any] = []
    # Where there is no notebook, IPython prints what it displays, to the bar that displays it.
    monkeypatch.setattr("IPython.display.display", lambda *things, **_: displayed.extend(things))
    for kind in ("force_terminal", "force_jupyter"):
        shown = io.StringIO()
        options: Any = {kind: True}
        console = Console(file=shown, width=100, **options)
        assert is_watched(console)
        with watching(job.job.rounds, "two sites", console) as run:
            progress = run.keywords["progress"]
            progress.preparing("Loading the model")
            progress.round_done(row)
        if kind == "force_terminal":
            assert "2/3" in shown.getvalue() and "loss 4.500" in shown.getvalue()
            assert not displayed
    assert displayed
