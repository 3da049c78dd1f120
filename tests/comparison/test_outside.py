"""Sites that take no part: what models are worth to them, and to the new sites there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fedpriv.config.load import load_job
from fedpriv.data.held_out import drawn_for
from fedpriv.errors import ConfigError, DataError
from fedpriv.methods.proposal import job_recipe
from fedpriv.personal.records import OwnParts, own_examples
from fedpriv.personal.training import train_alone
from fedpriv.plain_training.scores import score
from fedpriv.private_training.pool import make_worker
from fedpriv_comparison.command import compare as command
from fedpriv_comparison.comparison import Comparison, compare
from fedpriv_comparison.figures import figures, outside_gains, outside_in_words
from fedpriv_comparison.outside import FEW, draw, new_site, outside_examples
from fedpriv_comparison.present import markdown, tables
from fedpriv_comparison.runner import Runner
from fedpriv_comparison.trial import Result, _as_new_sites, over_folds
from fedpriv_comparison.variants import parse_variants
from fedpriv_server.own_records import spec_of

Make = Callable[..., Any]
APP = typer.Typer()
APP.command()(command)
OUTSIDE = """
[personal]
rates = [3e-2]
epochs = 2
batch_size = 4
[[outside]]
name = "new"
data = "new.jsonl"
"""


@pytest.fixture
def file(federation: Make) -> Path:
    """Two sites of 24 records, and one of 24 that takes no part: half of them are held out."""
    made: Path = federation(rounds=1, extra=OUTSIDE)
    rows = [{"note": f"patient {i} has a cough", "patient": 900 + i // 2} for i in range(24)]
    (made.parent / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def comparison(file: Path, *names: str, grid: tuple[str, ...] = (), **options: Any) -> Comparison:
    return Comparison.of(file, (), parse_variants(names, grid), 1, **options)


@pytest.mark.slow
def test_the_table_has_a_column_for_each_number_of_own_units(file: Path, tmp_path: Path) -> None:
    names = ("base", "dp-lora", "dp-lora-local", "dp-lora+personal")
    held = [f"sites.site-{index}.held_out=0.4" for index in (0, 1)]
    asked = Comparison.of(file, held, parse_variants(names, ()), 1, new_sites=[4, 8])
    rows = compare(asked, Runner(tmp_path / "runs"))
    assert {result.error for row in rows for result in row.results} == {""}
    found = {one.name: one for one in figures(asked, rows, "dp-lora")}
    assert found["dp-lora+personal"].outside is None
    outside = {name: found[name].outside for name in names[:3]}
    losses = {n: {c: s.mean for c, s in one.loss.items()} for n, one in outside.items() if one}
    assert all([*one] == ["0", "4", "8"] for one in losses.values())
    assert len({one["0"] for one in losses.values()}) == 3
    assert all(one["8"] < one["4"] < one["0"] for one in losses.values())
    text = markdown(asked, [*found.values()], "title", "fedpriv compare")
    assert "| outside | new 4 | new 8 |" in text
    assert "At outside sites, the loss of dp-lora after 4 own units is" in text
    assert "How good for outside sites" in {t.title for t in tables([*found.values()], 1)}
    base = outside["base"]
    config = load_job(file)
    worker = make_worker(job_recipe(config))
    reported = outside_examples(config, worker)["new"].reported
    expected = score(worker, reported, worker.initial).eval_loss
    assert base is not None and base.by_site["0"]["new"].mean == pytest.approx(expected, rel=1e-6)


def test_of_sites_that_trained_alone_the_best_one_is_taken(file: Path) -> None:
    """By the outside site's records that are not reported."""
    texts = ["".join(random.Random(i).choices("abcdefgh ", k=20)) for i in range(24)]
    rows = "".join(json.dumps({"note": text}) + "\n" for text in texts)
    (file.parent / "new.jsonl").write_text(rows)
    asked = comparison(file, "dp-lora-local", new_sites=[0])
    (trial,) = asked.reported(asked.variants[0], ())
    worker = make_worker(job_recipe(trial.config))
    site, drawn = outside_examples(trial.config, worker)["new"], np.random.default_rng(0)
    starts = worker.initial + drawn.normal(0, 0.1, (12, worker.initial.size)).astype(np.float32)

    def loss(examples: Any, start: Any) -> float:
        return score(worker, examples, start).eval_loss

    best, other = next(
        (one, other)
        for one, other in permutations(starts, 2)
        if loss(site.tuning, one) < loss(site.tuning, other)
        and loss(site.reported, one) > loss(site.reported, other)
    )
    for values in ({"site-0": other, "site-1": best}, {"site-0": best, "site-1": other}):
        found = _as_new_sites(trial, values, worker)["new"]["0"]
        assert found["eval_loss"] == loss(site.reported, best)


@pytest.mark.parametrize("unit", ["record", "patient"])
def test_fewer_units_are_among_more_and_the_same_for_every_model(file: Path, unit: str) -> None:
    config = load_job(file, [f"privacy.unit={unit}", "privacy.max_records_per_unit=2"])
    site = outside_examples(config, make_worker(job_recipe(config)))["new"]

    def units(count: int, seed: int) -> set[float]:
        drawn = draw(site.records, count, unit, seed).training
        return {drawn_for(record, unit, "any") for record in drawn}

    for seed in (0, 1):
        several = [units(count, seed) for count in range(6)]
        assert [len(found) for found in several] == [*range(6)]
        assert all(fewer < more for fewer, more in pairwise(several))
        assert units(4, seed) == several[4]
    assert units(4, 0) != units(4, 1)


def test_a_new_site_of_too_few_units_to_choose_by_makes_few_passes(file: Path) -> None:
    config = load_job(file)
    worker = make_worker(job_recipe(config))
    site, spec = outside_examples(config, worker)["new"], spec_of(config)
    tokenizer = worker.base.tokenizer

    def made(count: int, settings: Any = config.personal) -> Any:
        return new_site(
            worker, worker.initial, site, count, settings,
            spec=spec, seed=3, kind="personal",
        )  # fmt: skip

    assert made(0) is worker.initial
    (one,) = own_examples(draw(site.records, 1, "record", 3).training, spec, tokenizer)
    fixed = config.personal.model_copy(update={"validation": 0.0, "epochs": FEW})
    way = fixed.beginning("personal")
    expected = train_alone(worker, worker.initial, OwnParts((one,), 0), way, seed=3)
    assert np.array_equal(made(1), expected.values)
    assert not np.array_equal(made(4), expected.values)
    with pytest.raises(DataError):  # no token at all
        site = replace(
            site, records=replace(site.records, training=site.records.held_out.select([]))
        )
        made(1)


@pytest.mark.slow
def test_each_site_in_turn_takes_no_part(federation: Make, tmp_path: Path) -> None:
    """And what was run is not run again."""
    file, done = federation(rounds=1, sites=3), list[str]()
    asked = comparison(file, "base", "dp-lora", leave_one_site_out=True, held_out=0.5)
    for trial in asked.reported(asked.variants[1], ()):
        inside, (outside,) = [site.name for site in trial.config.sites], trial.config.outside
        assert sorted([*inside, outside.name]) == ["site-0", "site-1", "site-2"]
    assert asked.runs == 6

    def run() -> Any:
        done.clear()
        folder = tmp_path / "runs"
        return compare(asked, Runner(folder, done=lambda trial, _: done.append(trial.key)))

    rows = run()
    assert len(set(done)) == 6
    assert asked.left(tmp_path / "runs") == 0
    assert run() == rows
    for row in rows:
        (result,) = row.results
        assert set(result.outside) == set(result.home) == {"site-0", "site-1", "site-2"}
        assert not result.error and len(result.rounds) == (1 if row.variant.name == "base" else 2)
    base, private = figures(asked, rows, "dp-lora")
    assert base.outside is not None and base.home is not None and private.outside is not None
    # The base model has learned nowhere: what it has outside is what it has at home.
    assert base.outside.loss["0"].mean == pytest.approx(base.home.loss.mean)
    assert not private.outside.gain and base.outside.gain["0"] == pytest.approx(
        base.outside.loss["0"].mean - private.outside.loss["0"].mean
    )


def test_runs_to_choose_by_know_no_outside_site(file: Path) -> None:
    """So they are those of the same file without one."""
    grid = ("lr=1e-3,1e-2",)
    keys = [
        [trial.key for trial in asked.choices(asked.variants[0])]
        for asked in (
            comparison(file, "dp-lora", grid=grid, new_sites=[4]),
            comparison(file, "dp-lora", grid=grid),
        )
    ]
    assert keys[0] == keys[1] and len(keys[0]) == 2
    file.write_text(file.read_text().partition("[[outside]]")[0] + "[[sites]]" + "[[sites]]".join(
        file.read_text().split("[[sites]]")[1:]
    ))  # fmt: skip
    asked = comparison(file, "dp-lora", grid=grid)
    assert [trial.key for trial in asked.choices(asked.variants[0])] == keys[0]


def test_a_means_over_runs_that_left_out_one_site_each_is_of_all() -> None:
    def one(name: str, loss: float, epsilon: float) -> Result:
        home = {other: {"eval_loss": loss} for other in {"a", "b", "c"} - {name}}
        outside = {name: {"0": {"eval_loss": loss}}}
        return Result([{"round": 0, "eval_loss": loss}], epsilon, home=home, outside=outside)

    found = over_folds([one("a", 1.0, 2.0), one("b", 2.0, 3.0), one("c", 6.0, 1.0)])
    assert (found.rounds, found.epsilon) == ([{"round": 0, "eval_loss": 3.0}], 3.0)
    assert found.home == {
        name: {"eval_loss": x} for name, x in zip("abc", (4, 3.5, 1.5), strict=True)
    }
    assert {name: at["0"]["eval_loss"] for name, at in found.outside.items()} == {
        "a": 1.0, "b": 2.0, "c": 6.0,
    }  # fmt: skip
    failed = over_folds([one("a", 1.0, 2.0), Result([], error="no")])
    assert failed.error == "no"


def test_it_is_said_who_is_better_and_how_surely() -> None:
    def at(*losses: float) -> Result:
        return Result([{"round": 0, "eval_loss": 1.0}], outside={
            f"s{i}": {"4": {"eval_loss": loss}} for i, loss in enumerate(losses)
        })  # fmt: skip

    def said(mine: Result, theirs: Result) -> str:
        class Row:
            name, outside = "other", outside_gains([(mine, theirs)], [mine], "dp-lora")

        (text,) = outside_in_words([Row()])  # type: ignore[list-item]
        return text

    of = "At outside sites, the loss of dp-lora after 4 own units is"
    assert said(at(3.0, 3.1, 3.2), at(2.0, 2.1, 2.2)) == f"{of} 1.000 lower than that of other."
    higher = said(at(2.0, 2.1), at(3.0, 2.2))
    assert higher == f"{of} 0.550 higher than that of other, not sure."
    assert said(at(2.0), at(1.0)) == f"{of} 1.000 lower than that of other, one site."


@pytest.mark.parametrize(
    ("options", "change", "key", "words"),
    [
        (["--new-sites", "4,64"], "", "--new-sites", r"asks for 64 units of new, which has \d+ "),
        (["--new-sites", "4"], "no outside", "outside", "is missing"),
        (["--leave-one-site-out"], "", "--leave-one-site-out", "the file names 1"),
        ([], "a copy", "outside.new.data", "3 of 27 units that are also at site-1"),
        (["--set", "outside.new.held_out=none.jsonl"], "", "outside.new.held_out", "can't be read"),
    ],
)
def test_what_can_not_be_is_refused_before_any_training(
    file: Path, tmp_path: Path, options: list[str], change: str, key: str, words: str
) -> None:
    if change == "no outside":
        text = file.read_text()
        start = text.index("[[outside]]")
        file.write_text(text[:start] + text[text.index("[[sites]]") :])
    if change == "a copy":
        inside = (file.parent / "site-1.jsonl").read_text().splitlines(keepends=True)
        with (file.parent / "new.jsonl").open("a") as stream:
            stream.writelines(inside[:3])
    given = [str(file), "--methods", "lora", "--seeds", "1", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(APP, [*given, *options])
    assert isinstance(result.exception, ConfigError), result.output
    assert result.exception.key == key
    with pytest.raises(ConfigError, match=words):
        raise result.exception
    assert not list((tmp_path / "out").rglob("*.json"))


def test_numbers_of_units_are_numbers(file: Path, tmp_path: Path) -> None:
    for text in ("4,x", "-4", ""):
        given = [str(file), "--out", str(tmp_path / "out"), "--new-sites", text]
        assert CliRunner().invoke(APP, given).exit_code == 2
