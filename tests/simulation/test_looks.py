"""Looks at sites' held-out records in a whole simulation: what is paid, kept, asked again."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, StepFailedError
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import Centres, StepRequest
from fedpriv.report.html import write_report
from fedpriv_client.app import client_app
from fedpriv_client.site import Site
from fedpriv_server.job import Job
from fedpriv_server.run_directory import RunDirectory
from fedpriv_simulation.inline import InlineGrid
from fedpriv_simulation.simulate import Progress, simulate
from fedpriv_simulation.sites import Sites
from fedpriv_strategies.messages import TRAIN, as_arrays, message

Make = Callable[..., Any]
LOOKS = ["evaluation.sites.looks=2", "evaluation.sites.slots=3"]


def shared(share: float = 0.4) -> list[str]:
    return [f"sites.site-{i}.held_out={share}" for i in (0, 1)]


def run(file: Path, out: Path, *more: str, **options: Any) -> Any:
    config = load_job(file, [*LOOKS, *shared(), *more])
    return simulate(config, out, source=file, **options)


def slots_of(out: Path, job: str, site: str = "site-0") -> list[tuple[int, bool]]:
    with Ledger.open(out / "sites" / site / "ledger.db", reading=True) as ledger:
        return ledger.slots(job)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("job.sync=2", "optimizer.schedule=linear"),
        ("privacy.numerics=strict",),
        ("job.wire=int8",),
        ("job.method=pe-sgd", "synthetic.size=6", "synthetic.generator.kind=model"),
    ],
    ids=["sync-1", "sync-2", "strict", "int8", "pe-sgd"],
)
def test_looks_are_paid_from_the_same_plan_and_kept(
    federation: Make, tmp_path: Path, more: tuple[str, ...]
) -> None:
    out = tmp_path / "run"
    outcome = run(federation(rounds=3), out, *more)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert rows == outcome.rounds
    looks = [row["held_out"] for row in rows]
    assert [look and look["number"] for look in looks] == [None, 1, 2]
    training = 3 * outcome.run.info["config"]["job"]["sync"]
    for report in outcome.budgets.values():
        [event] = report.events
        assert event.count == training + 2 * 3
        sigma = calibrate_noise(6.0, 1e-3, 0.3, training + 6)
        assert event.noise_multiplier == pytest.approx(sigma)
    for look in looks[1:]:
        assert look["counted"] == 2
        assert (look["steps"], look["share"]) == (3, 0.3)
        for site in look["sites"].values():
            assert site["status"] == "ok"
            expected = 2.0 * sigma / (0.3 * 10 * 3**0.5)  # 0.4 × 24 units, rounded
            assert site["loss"]["deviation"] == pytest.approx(expected)
            assert site["accuracy"]["deviation"] == pytest.approx(expected / 2)
        assert look["loss"]["deviation"] == pytest.approx(expected / 2**0.5)
    assert slots_of(out, outcome.run.info["job_id"]) == [(s, True) for s in range(training + 6)]


@pytest.mark.slow
def test_an_interrupted_look_is_asked_again_and_paid_once(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = federation(rounds=2), tmp_path / "run"
    heard: list[Any] = []
    original = Job._look

    def interrupted(self: Job, grid: Any) -> None:
        amend = self.run.amend
        self.run.amend = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt())  # type: ignore[method-assign]
        try:
            original(self, grid)
        finally:
            heard.append(self.rounds[-1]["held_out"]) if self.rounds else None
            self.run.amend = amend  # type: ignore[method-assign]

    with monkeypatch.context() as patch:
        patch.setattr(Job, "_look", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(file, out)
    outcome = run(file, out, resume=True)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert heard[-1] is not None
    assert rows[0]["held_out"] == heard[-1]  # the stored replies, not other noise
    assert rows[1]["held_out"]["number"] == 2
    job = outcome.run.info["job_id"]
    assert slots_of(out, job) == [(slot, True) for slot in range(2 + 6)]


@pytest.mark.slow
def test_a_look_that_nobody_answers_is_left_out_and_training_goes_on(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Site._step

    def fails(self: Site, request: Any, *rest: Any) -> Any:
        if request.centres is not None and request.slot < 2 + 3:
            raise StepFailedError
        return step(self, request, *rest)

    monkeypatch.setattr(Site, "_step", fails)
    outcome = run(federation(rounds=2), tmp_path / "run")
    first, last = (row["held_out"] for row in outcome.rounds)
    assert (first["counted"], first["loss"]) == (0, None)
    assert {site["status"] for site in first["sites"].values()} == {
        "refused: failed (StepFailedError)"
    }
    assert last["counted"] == 2


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ([*LOOKS], "sites.site-0.held_out"),
        ([*LOOKS, *shared(), "evaluation.sites.looks=4"], "evaluation.sites.looks"),
        ([*shared(), "evaluation.sites.looks=0"], "evaluation.sites.looks"),
        ([*shared(), *LOOKS, "sites.site-0.held_out_size=5"], "held_out_size"),
        (
            [*shared(), *LOOKS, 'sites.site-1.held_out="site-0.jsonl"'],
            "sites.site-1.held_out_size",
        ),
        (
            ['sites.site-1.held_out="site-0.jsonl"', "sites.site-1.held_out_size=1000"],
            "held_out_size: δ",
        ),
    ],
)
def test_what_can_not_be_looked_at_is_named(
    federation: Make, settings: list[str], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_job(federation(rounds=3), settings)
    assert key in str(caught.value)


@pytest.mark.slow
def test_without_looks_nothing_of_a_plan_changes(federation: Make, tmp_path: Path) -> None:
    file, out = federation(rounds=2), tmp_path / "run"
    outcome = simulate(load_job(file, shared()), out, source=file)
    assert [row["held_out"] for row in outcome.rounds] == [None, None]
    assert slots_of(out, outcome.run.info["job_id"]) == [(0, True), (1, True)]


@pytest.mark.slow
def test_the_report_says_what_was_seen_and_how_sure_that_is(
    federation: Make, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    outcome = run(federation(rounds=2), out)
    page = write_report(out).read_text(encoding="utf-8")
    last = outcome.rounds[-1]["held_out"]
    assert f"{last['loss']['mean']:.3f} ± {last['loss']['deviation']:.3f}" in page
    words = " ".join(page.split())
    assert "a random 30% of the units" in words
    assert "the deviation is that of the noise alone" in words
    assert "site-1, after round 2" in words


def test_what_a_look_leaves_does_not_depend_on_records_but_for_two_values(
    federation: Make, tmp_path: Path
) -> None:
    """Law 1: two populations, the same request; every other field of the answers is equal."""
    file = federation(rounds=1)
    config = load_job(file, [*LOOKS, "evaluation.sites.looks=1", *shared()])
    rows = (file.parent / "site-0.jsonl").read_text().splitlines()
    (file.parent / "site-1.jsonl").write_text("\n".join(rows[:-9]) + "\n")  # fewer records
    directory = RunDirectory.create(tmp_path / "run", config, insecure_seed=None)
    pool = WorkerPool()
    job = Job(config, directory, pool)
    sites = Sites(config, directory.path, None, job.proposal.base_digest, 10**6)
    seen = []
    for section in config.sites:
        site = sites.open(section, pool)
        offer = site.consider(job.proposal)
        asked = StepRequest(
            job_id=job.proposal.job_id, slot=1, centres=Centres(loss=5.0, accuracy=0.1)
        )
        with InlineGrid({2: client_app(site)}, 1) as grid:
            arrays = as_arrays(job.update.vector)
            [reply] = grid.send_and_receive([message(asked, 2, TRAIN, "1", arrays)], timeout=60)
        assert set(reply.content) == {"fedpriv", "arrays"}
        assert set(reply.content["fedpriv"]) == {"body"}
        assert set(reply.content["arrays"]) == {"000000"}
        assert reply.content["arrays"]["000000"].shape == (2,)
        answers = [offer.model_dump(), json.loads(reply.content["fedpriv"]["body"])]
        theirs = {"site", "dataset_id", "ledger_head"}
        seen.append([{k: v for k, v in a.items() if k not in theirs} for a in answers])
        site.close()
    assert seen[0] == seen[1]


@pytest.mark.slow
def test_an_interrupted_run_ends_as_one_that_was_not(federation: Make, tmp_path: Path) -> None:
    """With a seed: the same looks, and the same model, whenever it stopped."""
    file = federation(rounds=3)
    whole = run(file, tmp_path / "whole", insecure_seed=1)

    def stop(metrics: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        with suppress(KeyboardInterrupt):
            resume = (tmp_path / "parts").exists()
            stopping = Progress(round_done=stop)
            parts = tmp_path / "parts"
            run(file, parts, insecure_seed=1, resume=resume, progress=stopping)
    outcome = run(file, tmp_path / "parts", insecure_seed=1, resume=True)
    looks = [[row["held_out"] for row in one.rounds] for one in (whole, outcome)]
    assert looks[0] == looks[1]
    assert [row["eval_loss"] for row in whole.rounds] == [r["eval_loss"] for r in outcome.rounds]


def test_held_out_records_are_no_public_ones(federation: Make, tmp_path: Path) -> None:
    """Not as a copy either: the server's scores on them would be a look that nobody paid for."""
    file = federation(rounds=1, public=False)
    (file.parent / "more.jsonl").write_text((file.parent / "held-out.jsonl").read_text() + "\n")
    own = ['sites.site-1.held_out="more.jsonl"', "sites.site-1.held_out_size=24"]
    rows = [{"note": f"more {i} words", "patient": 500 + i} for i in range(9)]
    (file.parent / "kept.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = load_job(file, own)
    with pytest.raises(ConfigError, match=r"evaluation\.data: holds 24 of 24 .* site-1"):
        simulate(config, tmp_path / "a", source=file)
    other = load_job(file, ['sites.site-1.held_out="kept.jsonl"', own[1]])
    simulate(other, tmp_path / "b", source=file)
