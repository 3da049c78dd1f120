"""A whole comparison on a tiny model."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpriv.config.load import load_job
from fedpriv.config.sites import SiteSection
from fedpriv.errors import ConfigError, DataError, RunError, RunningError
from fedpriv.models.stored import digest_of
from fedpriv.privacy.mechanism import execution
from fedpriv.private_training import unit_sum
from fedpriv.private_training.pool import WorkerPool
from fedpriv_comparison import public_training, trial
from fedpriv_comparison.comparison import Comparison, Row, compare, tuning_loss
from fedpriv_comparison.figures import figures
from fedpriv_comparison.inputs import add_digests
from fedpriv_comparison.present import chart, markdown
from fedpriv_comparison.runner import Runner, open_folder
from fedpriv_comparison.trial import Result, Trial, kept
from fedpriv_comparison.variants import parse_variants
from fedpriv_simulation.simulate import simulate
from tests.waiting import wait_until

Make = Callable[..., Any]


def comparison(
    file: Path, *names: str, grids: tuple[str, ...] = (), seeds: int = 1, tuning_seeds: int = 1
) -> Comparison:
    return Comparison.of(file, (), parse_variants(names, grids), seeds, tuning_seeds)


def test_all_begin_where_the_base_model_is(federation: Make, tmp_path: Path) -> None:
    """Whatever ran before in the same process."""
    clipped = "lora-clipped:clip_norm=0.01"
    names = ("base", "lora", clipped, "dp-lora", "dp-lora-pooled", "dp-lora-local")
    asked = comparison(federation(rounds=2), *names)
    rows = compare(asked, Runner(tmp_path / "runs"))
    starts = {row.variant.name: row.results[0].rounds[0]["eval_loss"] for row in rows}
    assert set(starts) == set(names)
    assert len(set(starts.values())) == 1
    ends = [row.results[0].last("eval_loss") for row in rows]
    assert len(set(ends)) == len(names)  # and each goes its own way
    assert [len(row.results[0].rounds) for row in rows] == [1, 3, 3, 3, 3, 3]
    private = [row.results[0].epsilon for row in rows[3:]]
    assert all(epsilon is not None and epsilon <= 6 for epsilon in private)
    assert [row.results[0].epsilon for row in rows[:3]] == [None] * 3
    for row in rows:
        ran = row.results[0]
        assert (ran.epsilon is None) == (ran.epsilon_committed is None)
        assert (ran.epsilon or 0) <= (ran.epsilon_committed or 0) <= 6

    found = figures(asked, rows, "dp-lora")
    text = markdown(asked, found, "title", "fedpriv compare …")
    assert text.count("\n| ") == 1 + len(names)
    assert "NOT PRIVATE" in text
    svg = chart(rows)
    for name in names:
        assert f">{name}<" in svg


@pytest.mark.slow
def test_a_synthetic_set_has_its_controls(federation: Make, tmp_path: Path) -> None:
    """The set alone, which reads no record of a site; and methods without a use for it."""
    file = federation(rounds=2, extra='[synthetic]\nsize = 6\ngenerator = { kind = "model" }\n')
    warm = ":synthetic.warm_start=2"
    names = (
        "base",
        "synthetic",
        f"warm-start{warm}",
        "lora",
        "dp-lora",
        f"dp-lora{warm}",
        "pe-sgd",
    )
    rows = compare(comparison(file, *names), Runner(tmp_path / "runs"))
    results = {row.variant.name: row.results[0] for row in rows}
    assert {result.error for result in results.values()} == {""}
    losses = {name: result.last("eval_loss") for name, result in results.items()}
    assert len(set(losses.values())) == len(names)
    for name in ("synthetic", f"warm-start{warm}"):
        assert results[name].epsilon is None and results[name].bytes_up == 0
    begun = results[f"warm-start{warm}"].rounds
    assert len(begun) == 1 and results["base"].rounds[0] != begun[0]
    with pytest.raises(ConfigError, match=r"synthetic\.warm_start: is missing"):
        comparison(file, "warm-start")
    assert results["pe-sgd"].bytes_up < results["dp-lora"].bytes_up
    for site in load_job(file).sites:  # other records of the same number
        assert isinstance(site.data, Path)
        site.data.write_text(site.data.read_text().replace("fever", "chill"))
    again = compare(comparison(file, "synthetic", "lora"), Runner(tmp_path / "others"))
    assert again[0].results[0].last("eval_loss") == losses["synthetic"]
    assert again[1].results[0].last("eval_loss") != losses["lora"]


def test_a_run_is_that_of_simulate(federation: Make, tmp_path: Path) -> None:
    asked = comparison(federation(rounds=2), "dp-lora")
    ((row),) = compare(asked, Runner(tmp_path / "runs"))
    config = asked.config(row.variant, (), 1)
    alone = simulate(config, tmp_path / "alone", source=tmp_path, insecure_seed=1)
    assert row.results[0].last("eval_loss") == alone.rounds[-1]["eval_loss"]
    assert row.results[0].last("tuning_loss") == alone.rounds[-1]["tuning_loss"]


def test_samples_are_those_of_the_private_run(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[int]] = []
    real = execution.poisson_sample

    def watched(*arguments: Any) -> Any:
        found = real(*arguments)
        drawn.append(np.asarray(found).tolist())
        return found

    monkeypatch.setattr(execution, "poisson_sample", watched)
    monkeypatch.setattr(public_training, "poisson_sample", watched)
    compare(comparison(federation(rounds=2), "dp-lora", "lora-clipped"), Runner(tmp_path / "runs"))
    assert len(drawn) == 8
    rounds = [sorted(drawn[start : start + 2]) for start in range(0, 8, 2)]  # two sites at a time
    assert rounds[:2] == rounds[2:]


def test_clipping_what_is_short_changes_nothing(federation: Make, tmp_path: Path) -> None:
    file = federation(rounds=2, extra='[compute]\ndtype = "float64"\n')  # rounding stays far below
    asked = comparison(file, "lora", "lora-clipped:clip_norm=1000")
    rows = compare(asked, Runner(tmp_path / "runs"))
    lora, clipped = (row.results[0].last("eval_loss") for row in rows)
    assert lora == pytest.approx(clipped, rel=1e-6)


@pytest.mark.slow
def test_settings_are_chosen_on_other_records_and_another_seed(
    federation: Make, tmp_path: Path
) -> None:
    asked = comparison(federation(rounds=2), "dp-lora", grids=("lr=1e-4,1e-2,3.0",), seeds=2)
    assert asked.runs == 5
    done: list[int] = []
    ((row),) = compare(
        asked, Runner(tmp_path / "runs", done=lambda trial, result: done.append(trial.seed))
    )
    assert done == [0, 0, 0, 1, 2]
    losses = {settings: tuning_loss(results) for settings, results in row.tuned}
    finite = {s: loss for s, loss in losses.items() if loss is not None}
    assert row.settings == min(finite, key=lambda settings: finite[settings])
    assert len(row.results) == 2


@pytest.mark.nightly
def test_settings_are_judged_by_several_runs_none_of_which_is_reported(
    federation: Make, tmp_path: Path
) -> None:
    file, done = federation(rounds=1), list[tuple[str, int]]()
    wide = comparison(file, "dp-lora", grids=("lr=1e-3,1e-2",), seeds=2, tuning_seeds=3)
    assert wide.runs == 8
    runs = Runner(tmp_path / "runs", done=lambda trial, _: done.append((trial.key, trial.seed)))
    ((row),) = compare(wide, runs)
    tuning, reported = {seed for _, seed in done[:6]}, {seed for _, seed in done[6:]}
    assert (len(tuning), len(set(done)), reported) == (3, 8, {1, 2})
    assert not tuning & reported and 0 in tuning
    assert [len(results) for _, results in row.tuned] == [3, 3]
    ((found),) = figures(wide, [row], "dp-lora")
    assert dict(found.tuned)[row.settings] == min(loss for _, loss in found.tuned if loss)
    means = [statistics.fmean(r.last("tuning_loss") or 0 for r in runs) for _, runs in row.tuned]
    assert [loss for _, loss in found.tuned] == pytest.approx(means)
    assert "mean of 3 seeds that are not reported" in markdown(wide, [found], "title", "command")
    assert wide.left(tmp_path / "runs") == 0
    narrow = comparison(file, "dp-lora", grids=("lr=1e-3,1e-2",), seeds=2)  # is among it
    assert all(kept(one, tmp_path / "runs") for one in narrow.choices(narrow.variants[0]))


def test_a_setting_is_judged_by_its_own_runs(federation: Make) -> None:
    """Runs are made in the order of their seeds, and belong to their settings all the same."""

    class Known:
        def results(self, trials: Sequence[Trial]) -> list[Result]:
            losses = [trial.config.optimizer.lr + trial.seed % 7 / 100 for trial in trials]
            return [Result([{"round": 1, "tuning_loss": loss}]) for loss in losses]

    rates = ("1", "2", "3")
    asked = comparison(
        federation(rounds=1), "dp-lora", "lora", grids=(f"lr={','.join(rates)}",), tuning_seeds=3
    )
    for row in compare(asked, cast("Runner", Known())):
        for (setting,), results in row.tuned:
            rate = float(setting.partition("=")[2])
            assert [int(result.tuning_loss or 0) for result in results] == [rate] * 3
        assert row.settings == ("optimizer.lr=1",)


def test_a_setting_that_one_seed_does_not_bear_is_not_chosen() -> None:
    good, bad = (Result([{"round": 1, "tuning_loss": loss}]) for loss in (2.0, math.nan))
    failed = Result([], error="out of memory")
    assert tuning_loss([good, good]) == 2.0
    assert all(tuning_loss([good, other]) is None for other in (bad, failed, None))


def test_settings_are_chosen_on_the_records_that_the_file_names(
    federation: Make, tmp_path: Path
) -> None:
    file = federation(rounds=1)
    halves = compare(comparison(file, "lora"), Runner(tmp_path / "halves"))
    other = tmp_path / "tuning.jsonl"
    config = load_job(file)
    other.write_bytes(config.evaluation.data.read_bytes())
    overrides = (f"evaluation.tuning={other}",)
    asked = Comparison.of(file, overrides, parse_variants(["lora"], []), 1)
    ((row),) = compare(asked, Runner(tmp_path / "whole"))
    last = row.results[0].last
    assert last("tuning_loss") == last("eval_loss") != halves[0].results[0].last("eval_loss")
    with pytest.raises(ConfigError, match="exclude each other"):
        load_job(file, [*overrides, "evaluation.tuning_share=0.5"])
    with pytest.raises(ConfigError, match="choose settings by the records that are reported"):
        load_job(file, [f"evaluation.tuning={config.evaluation.data}"])
    with pytest.raises(ConfigError, match="no such file") as caught:
        simulate(load_job(file, ["evaluation.tuning=none.jsonl"]), tmp_path / "run", source=file)
    assert caught.value.key == "evaluation.tuning"


def test_a_kept_run_is_not_run_again_and_another_setting_is(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = federation(rounds=1), tmp_path / "runs"
    first = compare(comparison(file, "lora"), Runner(folder))
    monkeypatch.setattr(trial, "_run", lambda *_: pytest.fail("it is kept"))
    assert compare(comparison(file, "lora"), Runner(folder)) == first
    with pytest.raises(pytest.fail.Exception):
        compare(comparison(file, "lora:lr=0.5"), Runner(folder))


def test_a_run_is_known_by_what_its_files_hold(federation: Make, tmp_path: Path) -> None:
    def key() -> str:
        asked = comparison(file, "dp-lora")
        return asked.trial(asked.variants[0], (), 1).key

    file = federation(rounds=1)
    config = load_job(file)
    before = key()
    for path in (config.evaluation.data, config.sites[0].data):
        assert isinstance(path, Path)
        text = path.read_text()
        path.write_text(text + text.splitlines()[0] + "\n")
        assert key() != before
        path.write_text(text)
        assert key() == before
    weights = Path(config.model.name) / "model.safetensors"
    held = weights.read_bytes()
    weights.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
    assert key() != before
    weights.write_bytes(held)
    elsewhere = shutil.copytree(file.parent, tmp_path / "elsewhere")
    file = elsewhere / file.name
    assert key() == before


def test_a_run_is_known_by_the_code_that_changes_its_texts(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code, file = tmp_path / "own_names.py", federation(rounds=1)
    code.write_text("def without(text: str) -> str:\n    return text\nother = without\n")
    table = 'transform = "own_names:without"\n'
    file.write_text(file.read_text() + table)
    asked = comparison(file, "dp-lora")
    before = asked.trial(asked.variants[0], (), 1).key
    file.write_text(file.read_text().replace("names:without", "names:other"))
    asked = comparison(file, "dp-lora")
    other = asked.trial(asked.variants[0], (), 1).key
    code.write_text(code.read_text().replace("return text", "return text.lower()"))
    asked = comparison(file, "dp-lora")
    assert len({before, other, asked.trial(asked.variants[0], (), 1).key}) == 3
    (tmp_path / "rules.py").write_text("LOWER = True\n")  # which that code may import
    keys = {before, other, asked.trial(asked.variants[0], (), 1).key}
    asked = comparison(file, "dp-lora")
    assert asked.trial(asked.variants[0], (), 1).key not in keys
    file.write_text(file.read_text().replace("own_names", "nowhere"))
    with pytest.raises(DataError, match=r"sites\.site-1\.transform"):
        comparison(file, "dp-lora")


def test_documents_are_known_with_the_texts_beside_them(federation: Make) -> None:
    file = federation()
    documents, beside = file.parent / "d" / "a.ndjson", file.parent / "d" / "1.txt"
    documents.parent.mkdir()
    documents.write_text("{}\n")
    sites = [{"name": "a", "fhir": {"path": str(documents)}, "size": 9}, {"name": "b", "data": "b"}]
    config = load_job(file).model_copy(
        update={"sites": [SiteSection.model_validate(s) for s in sites]}
    )
    keys = set()
    for text in ("one", "another"):
        beside.write_text(text)
        found = {"b": ""}
        add_digests(found, config)
        keys.add(found[str(documents)])
    assert len(keys) == 2


def test_no_run_of_a_comparison_ends_early(federation: Make) -> None:
    asked = Comparison.of(
        federation(), ["evaluation.stop_when_worse=true"], parse_variants(["dp-lora"], []), 1
    )
    assert not asked.config(asked.variants[0], (), 1).evaluation.stop_when_worse


def test_a_generator_on_this_machine_is_known_by_its_weights(
    federation: Make, model_folder: Make
) -> None:
    maker = model_folder("gpt2")
    settings = ("job.method=pe-sgd", "synthetic.size=6", "synthetic.generator.kind=local")
    config = load_job(federation(), [*settings, f"synthetic.generator.model={maker}"])
    found: dict[str, str] = {}
    add_digests(found, config)
    assert found[str(maker)] == digest_of(str(maker))


def test_a_comparison_is_of_the_file_as_it_was(federation: Make) -> None:
    file = federation(rounds=2)
    asked = comparison(file, "dp-lora")
    file.write_text("")
    assert asked.config(asked.variants[0], (), 1).job.rounds == 2


@pytest.mark.nightly
def test_runs_at_once_come_to_the_same(federation: Make, tmp_path: Path) -> None:
    asked = comparison(federation(rounds=1), "dp-lora", "lora", grids=("dp-lora:lr=1e-3,1e-2",))
    done: list[str] = []
    runner = Runner(tmp_path / "two", parallel=2, done=lambda trial, _: done.append(trial.key))
    rows = compare(asked, runner)
    again: list[str] = []  # and what is kept is waited for by nobody
    runner = Runner(tmp_path / "two", parallel=2, done=lambda trial, _: again.append(trial.key))
    assert compare(asked, runner) == rows
    assert sorted(again) == sorted(done)
    alone = compare(asked, Runner(tmp_path / "one"))
    assert len(done) == asked.runs == 4
    for row, other in zip(rows, alone, strict=True):
        pairs = zip(row.results, other.results, strict=True)
        tuned = zip(row.tuned, other.tuned, strict=True)
        for mine, theirs in [*pairs, *((one[1][0], two[1][0]) for one, two in tuned)]:
            assert (mine.rounds, mine.epsilon) == (theirs.rounds, theirs.epsilon)


@pytest.mark.slow
def test_a_process_that_dies_is_shown_and_tried_again(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = comparison(federation(rounds=1), "lora", "base")
    start = Runner._start

    def killed(self: Runner, one: Trial) -> Any:
        process = start(self, one)
        if one.method == "lora":
            process.kill()
        return process

    monkeypatch.setattr(Runner, "_start", killed)
    rows = compare(asked, Runner(tmp_path / "runs", parallel=2))
    assert "ended: -9" in rows[0].results[0].error
    assert rows[1].results[0].error == ""
    monkeypatch.undo()
    assert compare(asked, Runner(tmp_path / "runs"))[0].results[0].error == ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks /proc for children")
@pytest.mark.parametrize(
    "sign",
    [
        signal.SIGKILL,
        *(pytest.param(s, marks=pytest.mark.nightly) for s in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_no_run_outlives_its_command(
    federation: Make, tmp_path: Path, sign: signal.Signals
) -> None:
    program = str(Path(sys.executable).parent / "fedpriv")
    words = [program, "compare", str(federation(rounds=1000)), "--methods", "lora,lora:lr=0.5"]
    words += ["--seeds", "1", "--parallel", "2", "--out", str(tmp_path / "out")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as command:
        task = Path(f"/proc/{command.pid}/task/{command.pid}/children")
        work = tmp_path / "out" / "runs" / "work"
        wait_until(lambda: work.exists() and len(list(work.iterdir())) == 2)
        children = [Path(f"/proc/{pid}/stat") for pid in task.read_text().split()]
        command.send_signal(sign)
        assert command.wait() != 0
        assert command.stderr is not None and "Traceback" not in command.stderr.read()
    assert len(children) >= 2
    wait_until(lambda: all(is_gone(child) for child in children))
    with open_folder(tmp_path / "out" / "runs"):
        assert not work.exists()


def is_gone(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_one_comparison_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    left = tmp_path / "runs" / "work" / "left"
    with open_folder(tmp_path / "runs"):
        left.mkdir(parents=True)
        with pytest.raises(RunningError), open_folder(tmp_path / "runs"):
            pass
    with open_folder(tmp_path / "runs"):
        assert not left.exists()


def test_a_run_that_fails_is_shown_and_the_others_are_run(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise MemoryError("too large")

    monkeypatch.setattr(trial, "simulate", broken)
    asked = comparison(federation(rounds=1), "lora", "dp-lora", grids=("lr=1e-3,1e-2",))
    rows = compare(asked, Runner(tmp_path / "runs"))
    assert rows[1].settings is None
    found = figures(asked, rows, "lora")
    assert found[1].failed == [
        f"optimizer.lr={lr}: MemoryError: too large" for lr in ("1e-3", "1e-2")
    ]
    assert asked.left(tmp_path / "runs") == 3
    assert "eval_loss" in found[0].scores
    assert "failed" in markdown(asked, found, "title", "command")


@pytest.mark.slow
def test_a_failure_that_a_site_goes_on_after_fails_the_run(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site releases noise in its place; a table of such runs would say that the method is bad."""
    file, real = federation(rounds=2), unit_sum._means
    units = 0

    def once(*arguments: Any) -> Any:
        nonlocal units
        units += 1
        if units in (2, 3, 4, 5, 6, 7, 8):
            raise MemoryError
        return real(*arguments)

    for method in ("dp-lora", "lora"):
        units = 0
        monkeypatch.setattr(unit_sum, "_means", once)
        asked = comparison(file, method)
        [row] = compare(asked, runner := Runner(tmp_path / "runs"))
        assert "failed and counted as 0: " in row.results[0].error
        assert "MemoryError" in row.results[0].error
        monkeypatch.undo()
        [row] = compare(asked, runner)
        assert row.results[0].error == ""


def test_a_site_that_does_not_answer_fails_the_run(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = trial.simulate

    def absent(*arguments: Any, **options: Any) -> Any:
        outcome = real(*arguments, **options)
        outcome.rounds[1]["sites"].popitem()
        return outcome

    monkeypatch.setattr(trial, "simulate", absent)
    [row] = compare(comparison(federation(rounds=2), "dp-lora"), Runner(tmp_path / "runs"))
    assert re.search(r"Round 2: [\w-]+: did not answer", row.results[0].error)


@pytest.mark.nightly
def test_what_is_asked_for_twice_is_run_once(federation: Make, tmp_path: Path) -> None:
    asked = comparison(federation(rounds=1), "lora:lr=1e-2", "lora:lr=0.01")
    done: list[str] = []
    runner = Runner(tmp_path / "runs", parallel=2, done=lambda trial, _: done.append(trial.key))
    rows = compare(asked, runner)
    assert len(done) == 1
    assert rows[0].results == rows[1].results


def test_a_result_that_is_none_is_named(federation: Make, tmp_path: Path) -> None:
    asked = comparison(federation(rounds=1), "base")
    compare(asked, Runner(tmp_path))
    [path] = tmp_path.glob("*.json")
    path.write_text(path.read_text()[:-40])
    with pytest.raises(RunError, match=f"{path.name}: holds no result"):
        compare(asked, Runner(tmp_path))


def test_a_lasting_ledger_is_not_touched(federation: Make) -> None:
    file = federation(rounds=1)
    ledger = ["sites.0.ledger='a.db'", "sites.0.witness='w'"]
    asked = Comparison.of(file, ledger, parse_variants(["dp-lora"], []), 1)
    site = asked.config(asked.variants[0], (), 1).sites[0]
    assert (site.ledger, site.witness) == (None, None)


def test_private_records_are_not_compared(federation: Make) -> None:
    with pytest.raises(ConfigError, match="charged to the records") as refused:
        comparison(federation(public=False), "dp-lora")
    assert refused.value.key == "job.data_is_public"


def test_a_choice_at_the_end_of_its_grid_is_marked() -> None:
    (variant,) = parse_variants(["dp-lora"], ["lr=1,2,3", "optimizer=sgd,adamw"])
    edge = Row(variant, (), ("optimizer.lr=3", "optimizer.name=sgd"), ())
    inside = Row(variant, (), ("optimizer.lr=2", "optimizer.name=sgd"), ())
    assert (edge.at_the_edge, inside.at_the_edge) == (["optimizer.lr"], [])


def test_a_pool_that_trained_before_starts_anew(federation: Make, tmp_path: Path) -> None:
    config = comparison(federation(rounds=1), "dp-lora").config(
        parse_variants(["dp-lora"], [])[0], (), 1
    )
    pool = WorkerPool(1)
    losses = [
        simulate(config, tmp_path / str(i), source=tmp_path, insecure_seed=1, pool=pool)
        .rounds[-1]["eval_loss"]
        for i in range(2)
    ]  # fmt: skip
    assert losses[0] == losses[1]


def test_the_command_says_how_long_and_goes_on(
    federation: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fedpriv_client")  # and back to what it was afterwards
    import typer

    from fedpriv_comparison.command import compare as command

    app = typer.Typer()
    app.command()(command)
    arguments = [str(federation(rounds=1)), "--methods", "base,lora", "--seeds", "1"]
    out = tmp_path / "out"
    first = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert first.exit_code == 0, first.output
    assert "2 of 2 runs to do." in first.output
    assert {path.name for path in out.iterdir()} == {
        "runs", "compare.json", "compare.md", "compare.svg",
    }  # fmt: skip
    again = CliRunner().invoke(app, [*arguments, "--out", str(out), "--json"])
    assert "0 of 2 runs to do." in again.output
    document = json.loads((out / "compare.json").read_text())
    assert document["private"] is False
    assert [row["name"] for row in document["rows"]] == ["base", "lora"]
    other = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert other.exit_code != 0


def test_a_run_that_ends_worse_than_it_began_shows_in_the_exit(
    federation: Make, tmp_path: Path
) -> None:
    import typer

    from fedpriv_comparison.command import compare as command

    app = typer.Typer()
    app.command()(command)
    arguments = [str(federation(rounds=1)), "--methods", "base,dp-lora", "--seeds", "1"]
    arguments += ["--set", "optimizer.lr=1e3", "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 1 and "Worse than before training: dp-lora." in found.output
    assert "Worse than before training: dp-lora." in (tmp_path / "out/compare.md").read_text()
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    assert as_json.exit_code == 1 and '"worse": true' in as_json.output


def test_runs_that_are_compared_pay_for_no_looks(federation: Make) -> None:
    """All their data is public, and looks would make the noise of private variants larger."""
    looks = [f"sites.site-{i}.held_out=0.4" for i in (0, 1)] + ["evaluation.sites.looks=1"]
    variants = parse_variants(["dp-lora"], [])
    asked = Comparison.of(federation(rounds=1), looks, variants, 1, 1)
    config = asked.config(variants[0], (), 1)
    assert config.evaluation.sites is None and config.slots == 1
