"""When an answer leaves is the same whoever was drawn, and whatever their records hold (law 19)."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from fractions import Fraction
from math import comb
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.population import Population
from fedpriv.data.spec import DataSpec
from fedpriv.errors import ConfigError, DataError, ProtocolError, StepFailedError
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.privacy.ledger.rules import SumRule
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.private_training import batch_invariance
from fedpriv.private_training.config import ComputeSection
from fedpriv.report.budget import TICKS, TIMING
from fedpriv_client import own_records, ticks
from fedpriv_client.report import budget_report
from fedpriv_client.site import Site
from fedpriv_client.ticks import most_units, until_tick
from tests.client.client_setting import TERMS, Setting, request

REAL = dataclasses.replace(TERMS, simulated=False)


class Clock:
    """Time that passes only while somebody works or sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("fedpriv_client.ticks", "fedpriv_client.own_records"):
        monkeypatch.setattr(f"{module}.time", made)
    return made


@pytest.fixture
def setting(tmp_path: Path, model_folder: Callable[..., Any]) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


@pytest.fixture
def slow(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A second for each token that is computed, and one for each record that is prepared."""
    compute, encode = DpLora.clipped_sum, ticks_of("site", "encode_population")

    def computed(method: Any, worker: Any, units: Any, *settings: Any) -> Any:
        for place in range(len(units)):
            clock.now += sum(len(example.input_ids) for example in units[place])
        return compute(method, worker, units, *settings)

    def encoded(records: Any, *settings: Any, **options: Any) -> Any:
        clock.now += len(records) / 1000
        return encode(records, *settings, **options)

    monkeypatch.setattr(DpLora, "clipped_sum", computed)
    monkeypatch.setattr("fedpriv_client.site.encode_population", encoded)
    return clock


def ticks_of(module: str, name: str) -> Any:
    import importlib

    return getattr(importlib.import_module(f"fedpriv_client.{module}"), name)


def opened(setting: Setting, notes: list[str], ticks: bool = True, **limits: Any) -> Site:
    shutil.rmtree(setting.folder / "state", ignore_errors=True)
    setting.data.write_text("".join(json.dumps({"note": note}) + "\n" for note in notes))
    model = setting.proposal.model.name
    return setting.site(terms=REAL, model=model, ticks=ticks, **limits)


NOTES = (
    ["a"] * 24,
    ["a note that is much longer than any other note, of many, many, many, many words"] * 24,
    ["a"] * 23 + ["one note that is longer than the others"],
    ["a"],
)


def test_an_answer_takes_as_long_whatever_the_records_are(setting: Setting, slow: Clock) -> None:
    taken = []
    for notes in NOTES:
        site, took = opened(setting, notes), []
        began = slow.now
        site.consider(setting.proposal)
        took.append(round(slow.now - began, 6))
        for slot in range(3):
            began = slow.now
            site.step(request(slot), setting.vector)
            took.append(round(slow.now - began, 6))
        site.close()
        taken.append(took)
    assert taken == [taken[0]] * len(NOTES)
    preparation, first, second, third = taken[0]
    assert preparation == pytest.approx(3.0 + 0.002 * 1.1 * 24)
    assert second == third > 32 * 24 / 2  # as if all that are expected had the greatest length
    assert first > second  # it tries how long one takes, on random tokens


def test_without_ticks_it_shows(setting: Setting, slow: Clock) -> None:
    took = []
    for notes in NOTES[:2]:
        site = opened(setting, notes, ticks=False)
        site.consider(
            setting.change(privacy=setting.proposal.privacy.model_copy(update={"sample_rate": 1.0}))
        )
        began = slow.now
        site.step(request(), setting.vector)
        took.append(round(slow.now - began, 6))
        site.close()
    assert took[0] < took[1]


def test_a_failing_step_says_so_at_a_tick(
    setting: Setting, slow: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = opened(setting, NOTES[0])
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    began = slow.now
    site.step(request(1), setting.vector)
    usual = slow.now - began

    compute, calls = ticks_of("ticks", "_computed"), []

    def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:  # how long a record takes
            return compute(*arguments)
        slow.now += 0.25
        raise ValueError("of a record")

    monkeypatch.setattr("fedpriv_client.ticks._computed", failing)
    began = slow.now
    with suppress(StepFailedError):
        site.step(request(2), setting.vector)
    assert len(calls) == 2 and slow.now - began == pytest.approx(usual)
    site.close()


@given(took=st.floats(0, 50), tick=st.floats(0.01, 5))
def test_what_takes_longer_ends_at_a_later_tick(took: float, tick: float) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ticks, "time", clock)
        with until_tick(tick):
            clock.now += took
    count = round(clock.now / tick)
    assert clock.now == pytest.approx(count * tick, rel=1e-12)
    assert count >= 1 and (count - 1) * tick <= took * (1 + 1e-12) <= clock.now * (1 + 1e-11)


@pytest.mark.parametrize("rate", [1 / 2, 1 / 8, 1.0])
@pytest.mark.parametrize("units", [1, 7, 24, 60])
def test_so_many_units_are_enough(units: int, rate: float) -> None:
    """Against the binomial distribution in exact fractions."""
    terms = Terms("0" * 32, 100, "record", 1, 1e-3, 2.0, simulated=False)
    most, more = most_units(units, rate, terms), -(-11 * units // 10)
    beta = Fraction(1e-6) * Fraction(1e-3) / 10**6 / (1 + Fraction(7.38905609893065))
    q = Fraction(rate)

    def tail(k: int) -> Fraction:
        return sum(
            (comb(more, i) * q**i * (1 - q) ** (more - i) for i in range(k + 1, more + 1)),
            Fraction(0),
        )

    assert tail(most) <= beta < tail(most - 1)


def test_values_that_are_slow_to_compute_with_make_longer_ticks(
    setting: Setting, slow: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as numbers that are next to 0: a server chooses them."""
    site = opened(setting, NOTES[2])
    site.consider(setting.proposal)
    compute, slower = DpLora.clipped_sum, setting.vector * np.float32(1e-30)

    def computed(method: Any, worker: Any, units: Any, parameters: Any, *rest: Any) -> Any:
        if np.array_equal(parameters, slower):
            slow.now += 1000.0 * len(units)
        return compute(method, worker, units, parameters, *rest)

    monkeypatch.setattr(DpLora, "clipped_sum", computed)
    late: list[float] = []
    monkeypatch.setattr(ticks.log, "warning", lambda *what: late.append(what[1]))
    for slot, vector in enumerate((setting.vector, slower, setting.vector)):
        site.step(request(slot), vector)
    site.close()
    assert not late


@pytest.mark.slow
def test_nothing_is_tried_amid_a_step_whatever_came_before_it(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused proposal, or another model in between, takes what was found out from nobody."""
    tried: list[int] = []
    usual = batch_invariance._tried_sizes

    def counted(worker: Any, most: int, length: int) -> Any:
        tried.append(worker.is_settled)
        return usual(worker, most, length)

    monkeypatch.setattr(batch_invariance, "_tried_sizes", counted)
    opened(setting, NOTES[2]).close()
    shutil.rmtree(setting.folder / "state")
    terms = dataclasses.replace(REAL, rule=SumRule(1e-4), budget=30.0)
    site = setting.site(terms=terms, model=setting.proposal.model.name, ticks=True)
    site.consider(setting.proposal)
    alone = sizes_of(setting)
    site.step(request(), setting.vector)
    other = setting.change(job_id="other", seed=3, vector_digest="sha256:" + "0" * 64)
    with pytest.raises(ProtocolError):
        site.consider(other)
    with pytest.raises(ProtocolError, match="no offer"):  # it has to be asked for again
        site.step(request(1), setting.vector)
    site.consider(setting.proposal)
    site.step(request(1), setting.vector)
    with setting.pool.borrow(dataclasses.replace(setting_recipe(setting), seed=9)):
        pass  # as of a handover
    site.step(request(2), setting.vector)
    assert sizes_of(setting) == alone == 1 and not any(tried)
    site.close()


def sizes_of(setting: Setting) -> int:
    with setting.pool.borrow(setting_recipe(setting)) as worker:
        found: int = worker.microbatches["private"]
        return found


def test_what_was_not_tried_is_computed_alone_amid_a_step(setting: Setting) -> None:
    with setting.pool.borrow(setting_recipe(setting)) as worker:
        worker.microbatches["private"], worker.is_settled = 4, True
        worker.invariant_sizes.clear()
        assert batch_invariance._sizes(worker, 8) == (1,) and not worker.invariant_sizes
        worker.is_settled = False


@pytest.mark.parametrize(("sizes", "most"), [((4, 2, 1), 4), ((4,), 1), ((4, 2), 1)])
def test_a_record_by_itself_costs_no_more_than_itself(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, sizes: Any, most: int
) -> None:
    monkeypatch.setattr(batch_invariance, "_tried_sizes", lambda *_: sizes)
    with setting.pool.borrow(setting_recipe(setting)) as worker:
        worker.invariant_sizes.clear()
        batch_invariance.try_lengths(worker, 1e6, 100)
        assert worker.microbatches["private"] == 4
        batch_invariance.try_lengths(worker, 1e6, 100, ticks=True)
        assert worker.microbatches["private"] == most


@given(records=st.integers(1, 200), most=st.sampled_from([1, 2, 4, 8, 32]))
def test_copies_are_a_third_at_most(records: int, most: int) -> None:
    sizes = [most >> power for power in range(most.bit_length())]
    rows = sum(len(batch) for batch, _ in batch_invariance.batches_of(sizes, records))
    assert rows <= ticks.COPIES * records


@pytest.mark.parametrize(("size", "share"), [(50, 0.1), (1000, 0.02), (2000, 0.1)])
def test_a_look_on_a_share_allows_for_as_many_as_may_be_apart(
    setting: Setting, size: int, share: float
) -> None:
    """Each unit is apart by its own hash, so that more than the share of their number can be."""
    look = SimpleNamespace(centres=())
    terms = dataclasses.replace(REAL, declared_size=size, delta=1e-6, unit="patient")
    stated = SimpleNamespace(limits=SimpleNamespace(held_out=round(share * size)), held_out=share)
    site: Any = SimpleNamespace(settings=stated, ledger=SimpleNamespace(terms=terms))
    most = most_units(*Site._drawn_from(site, look), terms)  # type: ignore[arg-type]
    units, part = math.ceil(ticks.MORE * size), Fraction(str(share))
    more = sum(
        comb(units, k) * part**k * (1 - part) ** (units - k) for k in range(most + 1, units + 1)
    )
    assert more <= ticks.SHARE * terms.delta / ticks.STEPS
    site.ledger.terms = dataclasses.replace(terms, unit="record")  # of equal texts all are apart
    assert Site._drawn_from(site, look) == (size, 1.0)  # type: ignore[arg-type]
    site.ledger.terms = terms
    stated.held_out = setting.data  # a file of so many units
    assert Site._drawn_from(site, look) == (round(share * size), 1.0)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_report_says_that_timing_is_covered_only_if_it_is(setting: Setting) -> None:
    """Of all jobs of the ledger, and of those that may still come."""
    site = opened(setting, NOTES[0])
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    report = budget_report(site, "job-1")
    assert report.timing == TICKS and any("a quarter slower" in a for a in report.assumptions)
    assert site.ledger.plan("job-1").as_row()["ticks"] is True  # type: ignore[union-attr]
    site.close()
    model = setting.proposal.model.name
    later = setting.site(terms=REAL, model=model)  # somebody turned them off
    later.consider(setting.proposal)  # the job goes on as it began
    assert later._job is not None and later._job.plan.ticks
    later.step(request(1), setting.vector)
    # Reading records at a start, and the answer to a handover, follow the site's file.
    assert budget_report(later, "job-1").timing == TIMING
    later.close()
    terms = dataclasses.replace(REAL, rule=SumRule(1e-4))
    shutil.rmtree(setting.folder / "state")
    for on, said in ((True, TICKS), (False, TIMING)):  # other jobs may come
        site = setting.site(terms=terms, model=model, ticks=on)
        assert budget_report(site, "job-1").timing == said
        site.close()


@pytest.mark.slow
def test_a_job_that_began_with_ticks_goes_on_with_one_device_alone(setting: Setting) -> None:
    site = opened(setting, NOTES[0])
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    site.close()
    setting.compute = ComputeSection(device="cpu", devices=2)
    with closing(setting.site(terms=REAL, model=setting.proposal.model.name)) as later:
        with pytest.raises(ConfigError, match=r"devices: job job-1 began with public ticks"):
            later.consider(setting.proposal)
        assert budget_report(later, "job-1").timing == TIMING  # this start read records without


def test_a_job_that_began_without_goes_on_without(setting: Setting) -> None:
    site = opened(setting, NOTES[0], ticks=False)
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    assert "ticks" not in site.ledger.plan("job-1").as_row()  # type: ignore[union-attr]
    site.close()
    later = setting.site(terms=REAL, model=setting.proposal.model.name, ticks=True)
    later.consider(setting.proposal)
    later.step(request(1), setting.vector)
    assert budget_report(later, "job-1").timing == TIMING
    later.close()


def test_records_that_take_longer_to_prepare_are_told_before_the_site_connects(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "PREPARATION", (1e-9, 0.0))
    with pytest.raises(DataError, match=r"site\.preparation"):
        opened(setting, NOTES[1])
    opened(setting, NOTES[1], ticks=False).close()


def test_a_proposal_of_short_windows_has_the_same_time(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take a tokenizer longer, and whoever proposes says how long they are."""
    clock, encode = [0.0], own_records.encode_population

    def slow(records: Any, spec: DataSpec, *others: Any) -> Population:
        clock[0] += 10 / spec.max_length
        return encode(records, spec, *others)

    monkeypatch.setattr(own_records, "encode_population", slow)
    monkeypatch.setattr(own_records, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(own_records, "preparation", lambda settings: 4.9 * 1.25)
    with pytest.raises(DataError, match=r"site\.preparation.*take 6\.2 s"):
        opened(setting, NOTES[1])
    monkeypatch.setattr(own_records, "preparation", lambda settings: 5.1 * 1.25)
    opened(setting, NOTES[1]).close()


@pytest.mark.slow
def test_lengths_are_tried_whatever_the_records_are(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[int]] = []
    asked: set[tuple[float, int]] = set()

    def some(worker: Any, lengths: Any, records: float, steps: int) -> int:
        asked.add((records, steps))
        return 4

    def found(worker: Any, most: int, length: int) -> tuple[int, ...]:
        tried[-1].append(length)
        return (1,)

    monkeypatch.setattr(batch_invariance, "_tried_sizes", found)
    monkeypatch.setattr(batch_invariance, "_that_pay", some)
    for number, notes in enumerate(NOTES):
        for on in (True, False):
            tried.append([])
            with setting.pool.borrow(setting_recipe(setting)) as worker:
                worker.invariant_sizes.clear()
            with closing(opened(setting, notes, ticks=on)) as site:
                site.consider(setting.change(job_id=f"job-{number}-{on}"))
    assert tried == [[8, 16, 24, 32]] * 2 * len(NOTES)
    assert len(asked) == 1  # of the declared size


def setting_recipe(setting: Setting) -> Any:
    from fedpriv.private_training.worker import ModelRecipe

    proposal = setting.proposal
    return ModelRecipe(proposal.model, proposal.lora, proposal.seed, setting.compute)
