"""Several processes make the sum that one makes, whatever becomes of them."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.encode import Example
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.methods.dp_lora import DpLoraMethod
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.private_training.method import SiteHalf
from fedpriv.private_training.team import Shared, _Member, dealt, devices_after, team_of
from fedpriv.protocol import Proposal

CLIP = 0.4
ZEROS = "sha256:" + "0" * 64
PROPOSAL = Proposal(
    job_id="job",
    method="dp-lora",
    steps=4,
    seed=0,
    fields=("text",),
    model=ModelSection(),
    lora=LoraSection(),
    privacy=PrivacySection(),
    base_digest=ZEROS,
    vector_digest=ZEROS,
)
HALF = SiteHalf(DpLoraMethod(), PROPOSAL)
Make = Callable[..., Any]


def units(count: int) -> list[tuple[Example, ...]]:
    found = []
    for number in range(count):
        drawn = np.random.default_rng(number)
        ids = drawn.integers(3, 250, size=3 + number % 20).tolist()
        found.append((Example(ids, [-100, *ids[1:]]),))
    return found


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def workers(make_worker: Make, threads: None) -> Iterator[tuple[Any, Any]]:
    """One that is alone, and one with another process."""
    alone, leader = make_worker(dtype="float32"), make_worker(dtype="float32", devices=2)
    yield alone, leader
    leader.close()


def sums(workers: tuple[Any, Any], count: int, numerics: Any = "default") -> list[Any]:
    alone, leader = workers
    found = []
    noise = np.random.default_rng(1).normal(size=alone.vector.size).astype(np.float32) / 10
    for worker in (alone, leader):
        method = HALF.at(worker)
        values = worker.initial + noise
        assert method.prepare(worker, values) == worker.vector.size
        found.append(method.clipped_sum(worker, units(count), values, CLIP, numerics))
    return found


@pytest.mark.slow
def test_two_processes_make_the_sum_of_one(workers: tuple[Any, Any]) -> None:
    assert not isinstance(HALF.at(workers[0]), Shared)
    for count in (9, 1, 0):
        one, two = sums(workers, count)
        assert two.sensitivity == one.sensitivity == CLIP
        assert (one.value - two.value).abs().max() <= 1e-6 * max(1.0, float(one.value.abs().max()))
        assert bool(one.value.any()) == bool(count)
    one, two = sums(workers, 9, "strict")
    assert torch.equal(one.value, two.value)
    assert one.grid == two.grid

    # An answer that nobody waited for is not taken for another.
    leader = workers[1]
    [member] = team_of(leader).members
    member.ask("sum", units(3), leader.initial, CLIP, "default")
    one, two = sums(workers, 9)
    assert (one.value - two.value).abs().max() <= 1e-6
    method = Shared(DpLora(), team_of(leader), HALF)
    with pytest.raises(FedprivError, match="Expected a float32 vector"):
        method.clipped_sum(leader, units(4), leader.initial[:-1], CLIP, "default")
    one, two = sums(workers, 9)
    assert (one.value - two.value).abs().max() <= 1e-6
    strange = SiteHalf(DpLoraMethod(), PROPOSAL.model_copy(update={"settings": {"x": 1}}))
    with pytest.raises(FedprivError, match="dp-lora has none"):
        Shared(DpLora(), team_of(leader), strange).prepare(leader, leader.initial)

    # One that is gone is not missed.
    os.kill(member._process.pid, signal.SIGKILL)
    one, two = sums(workers, 9)
    assert (one.value - two.value).abs().max() <= 1e-6
    assert team_of(leader).members == []
    one, two = sums(workers, 9)
    assert (one.value - two.value).abs().max() <= 1e-6


@pytest.mark.slow
def test_a_process_that_is_gone_amid_a_step_is_not_missed(workers: tuple[Any, Any]) -> None:
    alone, leader = workers
    method = Shared(DpLora(), team_of(leader), HALF)
    method.prepare(leader, leader.initial)
    [member] = team_of(leader).members
    plain = method._own.clipped_sum

    def killing(*arguments: Any) -> Any:
        if member in team_of(leader).members:
            os.kill(member._process.pid, signal.SIGKILL)
            member._process.join()
        return plain(*arguments)

    os.kill(member._process.pid, signal.SIGSTOP)
    method._own.clipped_sum = killing  # type: ignore[method-assign]
    found = method.clipped_sum(leader, units(8), leader.initial, CLIP, "default")
    expected = DpLora().clipped_sum(alone, units(8), alone.initial, CLIP, "default")
    assert (found.value - expected.value).abs().max() <= 1e-6
    assert team_of(leader).members == []


def never(error: Exception) -> None:
    raise AssertionError("a unit can't be read") from error


class Unreadable(list[Any]):
    """Units, of which one is on a broken part of the disk."""

    def __getitem__(self, place: Any) -> Any:
        if place == 3:
            raise OSError(5, "Input/output error")
        return super().__getitem__(place)


def test_a_unit_that_can_not_be_read_leaves_the_others_as_they_are() -> None:
    found: list[Exception] = []
    parts = dealt(Unreadable(units(8)), 2, found.append)
    rest = dealt([unit for place, unit in enumerate(units(8)) if place != 3], 2, never)
    assert parts == rest
    assert [type(error) for error in found] == [OSError]


@given(st.integers(0, 40), st.integers(1, 8))
def test_every_unit_is_dealt_once(count: int, parts: int) -> None:
    given_out = dealt(units(count), parts, never)
    fewer = dealt(units(count)[1:], parts, never)
    assert sum(len(a) != len(b) for a, b in zip(given_out, fewer, strict=True)) <= 1
    assert len(given_out) == parts
    assert sorted(str(unit) for part in given_out for unit in part) == sorted(
        str(unit) for unit in units(count)
    )


@pytest.mark.parametrize(
    ("first", "count", "there", "expected"),
    [
        ("cpu", 3, 0, ["cpu", "cpu"]),
        ("cuda", 2, 2, ["cuda:1"]),
        ("cuda:2", 2, 4, ["cuda:3"]),
    ],
)
def test_the_devices_of_a_team(first: str, count: int, there: int, expected: list[str]) -> None:
    assert devices_after(first, count, there) == expected


@pytest.mark.parametrize(("first", "there"), [("cuda", 1), ("cuda:3", 4), ("cuda:9", 4)])
def test_more_devices_than_there_are_are_refused(first: str, there: int) -> None:
    with pytest.raises(ConfigError, match=r"compute\.devices"):
        devices_after(first, 2, there)


def test_what_a_step_held_is_gone_when_a_process_failed() -> None:
    """Its error must not keep the frames that it passed, and with them sums without noise."""

    class Held:
        pass

    class Pipe:
        def recv(self) -> Exception:
            return RuntimeError("ValueError")

    def noted() -> weakref.ref[Held]:
        held, member = Held(), object.__new__(_Member)
        vars(member)["_pipe"] = Pipe()
        try:
            member.answer()
        except RuntimeError:
            return weakref.ref(held)
        raise AssertionError

    gc.disable()
    try:
        assert noted()() is None
    finally:
        gc.enable()
