"""What models are worth to each site, on records of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.config.load import load_job
from fedpriv.data.held_out import HELD_OUT, is_apart
from fedpriv.errors import ConfigError, DataError
from fedpriv.methods.proposal import job_recipe
from fedpriv.personal.training import train_alone
from fedpriv.plain_training.scores import score
from fedpriv.private_training.pool import make_worker
from fedpriv_comparison import public_training
from fedpriv_comparison.comparison import Comparison, compare
from fedpriv_comparison.figures import figures, held_out_gains, verdict
from fedpriv_comparison.held_out_scores import as_it_is, check_records, own_examples
from fedpriv_comparison.present import markdown, tables
from fedpriv_comparison.records import pooled
from fedpriv_comparison.runner import Runner
from fedpriv_comparison.trial import Result, run
from fedpriv_comparison.variants import parse_variants

Make = Callable[..., Any]
PERSONAL = "[personal]\nvalidation = 0.25\nrates = [3e-2]\nepochs = 3\nbatch_size = 4"


def comparison(file: Path, *names: str, seeds: int = 1, grids: tuple[str, ...] = ()) -> Comparison:
    return Comparison.of(file, (), parse_variants(names, grids), seeds, held_out=0.5)


def records(file: Path, site: int) -> list[str]:
    lines = (file.parent / f"site-{site}.jsonl").read_text().splitlines()
    return [json.loads(line)["note"] for line in lines]


def test_each_record_has_one_part(federation: Make) -> None:
    """And what the federation trains on is what its site trains on and chooses by."""
    file = federation(extra=PERSONAL)
    config = comparison(file, "dp-lora").config(*_first(comparison(file, "dp-lora")), 1)
    worker = make_worker(job_recipe(config))
    populations, _, _ = public_training.load(config, worker)
    for index, (name, own) in enumerate(own_examples(config, worker).items()):
        parts = [*own.training.parts, own.reported, own.tuning]
        assert sum(map(len, parts)) == 24
        notes = records(file, index)
        held = sum(is_apart({"text": note}, "record", 0.5, HELD_OUT) for note in notes)
        assert len(own.reported) + len(own.tuning) == held
        assert abs(len(own.reported) - len(own.tuning)) <= 1
        assert (len(own.training.parts), own.training.left_out) == (4, 4)
        trained = sorted(e.input_ids for e in own.training.everything)
        units = populations[name].units
        assert sorted(e.input_ids for unit in units for e in unit) == trained


def _first(asked: Comparison) -> Any:
    (variant,) = asked.variants
    return variant, variant.grid[0]


def test_a_pooled_party_trains_on_no_held_out_record(federation: Make, tmp_path: Path) -> None:
    file = federation(extra=PERSONAL)
    config = comparison(file, "dp-lora-pooled").config(
        *_first(comparison(file, "dp-lora-pooled")), 1
    )
    (site,) = pooled(config, tmp_path).sites
    assert isinstance(site.data, Path)
    texts = {json.loads(line)["note"] for line in site.data.read_text().splitlines()}
    held = {
        note
        for index in (0, 1)
        for note in records(file, index)
        if is_apart({"text": note}, "record", 0.5, HELD_OUT)
    }
    assert held and texts and not held & texts


@pytest.mark.slow
def test_the_table_says_what_each_site_gains(federation: Make, tmp_path: Path) -> None:
    names = ("base", "lora-alone", "dp-lora", "dp-lora+personal", "dp-lora-local", "lora+personal")
    asked = comparison(federation(rounds=2, extra=PERSONAL), *names)
    rows = compare(asked, Runner(tmp_path / "runs"))
    assert {result.error for row in rows for result in row.results} == {""}
    found = {one.name: one for one in figures(asked, rows, "dp-lora")}
    homes = {name: one.home for name, one in found.items()}
    base, alone, personal = (homes[n] for n in ("base", "lora-alone", "dp-lora+personal"))
    assert base and alone and personal
    assert alone.loss.mean < base.loss.mean - 0.05
    assert personal.loss.mean < base.loss.mean - 0.05
    assert personal.difference is not None and alone.difference is None
    assert personal.difference.mean == pytest.approx(personal.loss.mean - alone.loss.mean)
    assert base.pays is not None and base.pays.mean == 0
    assert max(one.mean for one in alone.by_site.values()) == alone.worst.mean
    assert found["dp-lora+personal"].epsilon == found["dp-lora"].epsilon
    assert found["lora-alone"].epsilon is None and found["lora-alone"].bytes_up == 0
    text = markdown(asked, list(found.values()), "title", "fedpriv compare")
    assert "own loss" in text and "pays" in text
    assert len(tables(list(found.values()), 1)) == 3


@pytest.mark.slow
def test_what_is_gone_on_from_is_the_run_before(federation: Make, tmp_path: Path) -> None:
    """Its file is used, by every setting of the training that follows."""
    grids = ("personal.rates=[1e-9],[3e-2]",)
    asked = comparison(
        federation(rounds=2, extra=PERSONAL), "dp-lora", "dp-lora+personal", grids=grids
    )
    plain, personal = compare(asked, Runner(tmp_path / "runs"))
    ((still,),) = [results for settings, results in personal.tuned if "1e-9" in settings[0]]
    before = asked.choices(personal.variant)[0].before
    assert len({trial.before.key for trial in asked.choices(personal.variant)}) == 1
    kept = run(before, tmp_path / "runs", None)  # type: ignore[arg-type]
    for name, scores in kept.home.items():
        moved = still.home[name]["eval_loss"]
        assert moved == pytest.approx(scores["eval_loss"], abs=1e-5)
    assert plain.results[0].home != personal.results[0].home


def test_going_on_learns(federation: Make) -> None:
    file = federation(extra=PERSONAL)
    config = comparison(file, "dp-lora").config(*_first(comparison(file, "dp-lora")), 1)
    worker = make_worker(job_recipe(config))
    own = own_examples(config, worker)["site-0"]
    start = worker.initial + 0.05 * np.random.default_rng(0).standard_normal(
        worker.initial.size, dtype=np.float32
    )
    before = score(worker, own.training.everything, start).eval_loss
    weights = [p.detach().clone() for p in worker.model.parameters() if not p.requires_grad]
    settings = config.personal.beginning("alone")
    made = train_alone(worker, start, own.training, settings)
    assert as_it_is(worker, made.values)(own.training.everything).eval_loss < before - 0.05
    assert made.best.said.startswith("0.03 × ")
    frozen = [p for p in worker.model.parameters() if not p.requires_grad]
    assert all(bool((a == b).all()) for a, b in zip(weights, frozen, strict=True))


def test_what_decides_no_result_names_no_run(federation: Make) -> None:
    """The weight of `fedpriv-client evaluate` is none of theirs: runs that are kept stay so."""
    file = federation(extra=PERSONAL)
    keys = []
    for extra in ("", "personal.beside=0.4", "personal.patience=7"):
        asked = comparison(file, "dp-lora+personal")
        variant, settings = _first(asked)
        config = load_job(file, [extra] if extra else [])
        keys.append(replace(asked.trial(variant, settings, 1), config=config).key)
    assert keys[0] == keys[1] != keys[2]


def test_without_held_out_records_nobody_trains_alone(federation: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        Comparison.of(federation(), (), parse_variants(["lora-alone"], ()), 1)
    assert caught.value.key == "sites.held_out"
    assert "--held-out" in caught.value.fix


def test_too_few_held_out_records_are_refused(federation: Make, tmp_path: Path) -> None:
    """One can't be reported on and choose settings, too."""
    file = federation(rounds=1)
    (tmp_path / "one.jsonl").write_text(json.dumps({"note": "another note of one line"}) + "\n")
    config = load_job(file, [f"sites.site-0.held_out={tmp_path / 'one.jsonl'}"])
    with pytest.raises(DataError) as caught:
        own_examples(config, make_worker(job_recipe(config)))
    assert caught.value.key == "sites.site-0.held_out"


def test_who_gains_is_counted_by_site_and_by_seed() -> None:
    def result(**losses: float) -> Result:
        home = {name: {"eval_loss": x, "eval_accuracy": x / 10} for name, x in losses.items()}
        return Result([{"round": 0, "eval_loss": 1.0}], home=home)

    alone = [result(a=3.0, b=3.0), result(a=3.0, b=3.0)]
    mine = [result(a=2.0, b=3.5), result(a=2.0, b=2.5)]
    found = held_out_gains(mine, alone)
    assert found is not None and found.difference and found.pays
    assert (found.loss.mean, found.accuracy.mean) == (2.5, 0.25)
    assert found.difference.mean == -0.5
    assert found.pays.mean == 0.75  # one of two, then both
    assert found.verdict == "a tie"  # 1 ± 3.2 by two sites
    assert found.worst.mean == 3.0  # of 3.5 and 2.5
    assert found.by_site["b"].mean == 3.0
    assert held_out_gains([Result([], error="no")], alone) is None
    shuffled = random.Random(0).sample(mine, 2)
    assert held_out_gains(shuffled, ()) is not None


def of_sites(**losses: float) -> Result:
    home = {name: {"eval_loss": x, "eval_accuracy": 0.5} for name, x in losses.items()}
    return Result([{"round": 0, "eval_loss": 1.0}], home=home)


def test_nothing_pays_against_a_model_that_is_worse_than_none() -> None:
    base, alone = of_sites(a=0.69, b=0.70, c=0.70), of_sites(a=1.30, b=1.20, c=0.65)
    untrained = held_out_gains([base], [alone], [base])
    assert untrained is not None and untrained.pays is not None
    assert untrained.pays.mean == 0
    assert untrained.verdict != "pays"
    better = held_out_gains([of_sites(a=0.60, b=0.71, c=0.60)], [alone], [base])
    assert better is not None and better.pays is not None and better.difference is not None
    assert better.pays.mean == pytest.approx(2 / 3)
    assert better.difference.mean == pytest.approx(-(0.70 + 0.49 + 0.05) / 3)


def test_less_than_is_shown_is_a_tie() -> None:
    one, other = of_sites(a=0.6931, b=0.6935), of_sites(a=0.6935, b=0.6937)
    found = held_out_gains([one], [other], [other])
    assert found is not None and found.pays is not None
    assert (found.pays.mean, found.verdict) == (0, "a tie")


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([0.1, 0.12, 0.11, 0.1], "pays"),
        ([-0.1, -0.12, -0.11, -0.1], "does not pay"),
        ([0.3, -0.1, 0.2, -0.2], "a tie"),
        ([0.0, 0.0], "a tie"),
        ([0.5], None),
    ],
)
def test_the_verdict_is_that_of_the_mean_over_the_sites(gains: list[float], said: str) -> None:
    assert verdict(gains) == said


def test_records_by_which_nothing_can_be_judged_are_refused(
    federation: Make, tmp_path: Path
) -> None:
    """Those of a site that were trained on under other ids; and of the whole evaluation."""
    file = federation(extra=PERSONAL)
    notes = records(file, 0)
    (tmp_path / "copies.jsonl").write_text(
        "".join(json.dumps({"note": note}) + "\n" for note in notes)
    )
    config = load_job(file, [f"evaluation.data={tmp_path / 'copies.jsonl'}"])
    worker = make_worker(job_recipe(config))
    with pytest.raises(DataError, match="are copies of records that train") as caught:
        check_records(config, worker)
    assert caught.value.key == "evaluation.data"
    check_records(load_job(file, ["sites.0.held_out=0.5"]), worker)
    site = file.parent / "site-1.jsonl"
    rows = [{"note": note, "patient": f"other {i}"} for i, note in enumerate(records(file, 0))]
    site.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="are copies of records that train") as caught:
        check_records(load_job(file, ["sites.0.held_out=0.5"]), worker)
    assert caught.value.key == "sites.site-0.held_out"
