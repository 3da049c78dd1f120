"""A site with one record more says, writes and waits the same, whatever a server does.

Two sites, one of which has a long record more, live through the same random messages and restarts.
The one with more finds its disk full now and then, and can't compute that record. All that anybody
else can see is compared: every answer, the report, the account, and how long it took. What was paid
for is not: the values of the vectors, and the hashes and signatures over them.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets  # type: ignore[import-untyped]  # noqa: F401  # it keeps shutil's function
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fedpriv import files
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.privacy.ledger.rules import SumRule
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.worker import Worker
from fedpriv.protocol import Body, Handover, ReportRequest, values_digest
from fedpriv_client import ticks
from fedpriv_client.app import client_app
from fedpriv_client.report import write_budget_report
from fedpriv_client.site import Site
from fedpriv_simulation.inline import InlineGrid
from fedpriv_strategies.messages import ADAPTER, QUERY, REPORT, TRAIN, as_arrays, message
from tests.client.client_setting import TERMS, Setting, request

REAL = replace(TERMS, simulated=False, rule=SumRule(1e-4), budget=30.0)
PAID = {"ledger_head", "signature", "witness_head", "head", "last_report"}
JOBS = ("job-1", "job-2")
Action = tuple[str, Any]
# What a server may do, in any order; `disk` is of the second site alone, `restart` of both.
ACTIONS: SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("propose"), st.tuples(st.sampled_from(JOBS), st.integers(0, 5))),
    st.tuples(st.just("step"), st.tuples(st.sampled_from(JOBS), st.integers(0, 4))),
    st.tuples(st.just("odd-step"), st.integers(0, 3)),
    st.tuples(st.just("report"), st.sampled_from((*JOBS, "nobodys"))),
    st.tuples(st.just("adapter"), st.sampled_from(JOBS)),
    st.tuples(st.just("garbage"), st.sampled_from((QUERY, TRAIN, REPORT, ADAPTER))),
    st.tuples(st.just("disk"), st.booleans()),
    st.tuples(st.just("restart"), st.none()),
)
LONG = "a record that no other site has, with many, many, many words"


class Clock:
    """Time that passes only while a site computes on records or waits."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class World:
    """One of the two sites, and what may be seen of it."""

    def __init__(self, folder: Path, model: Path, extra: bool) -> None:
        folder.mkdir()
        self.setting, self.full, self.was_full = Setting(folder, model), False, False
        if extra:
            with self.setting.data.open("a") as stream:
                stream.write(json.dumps({"note": LONG}) + "\n")
        self.clock, self.seen = Clock(), list[Any]()

    def begin(self) -> None:
        shutil.rmtree(self.setting.folder / "state", ignore_errors=True)
        self.full, self.was_full, self.seen, self.clock.now = False, False, [], 0.0
        self.open()

    def open(self) -> None:
        model = self.setting.proposal.model.name
        self.site: Site = self.setting.site(terms=REAL, model=model, ticks=True, server="h:1")

    def do(self, action: Action, is_second: bool) -> None:
        name, what = action
        began, answer = self.clock.now, None
        if name == "disk":
            self.full = what and is_second
            self.was_full |= what
        elif name == "restart":
            full, self.full = self.full, False  # whether it starts, its administrator sees
            self.site.close()
            self.open()
            self.full = full
        else:
            answer = self.asked(*getattr(self, name.replace("-", "_"))(what))
        self.seen.append((action, answer, round(self.clock.now - began, 6), self.handed_on()))

    def asked(self, content: RecordDict | Body, kind: str, arrays: ArrayRecord | None) -> Any:
        with InlineGrid({2: client_app(self.site)}, 1) as grid:
            if isinstance(content, RecordDict):
                sent = Message(content, dst_node_id=2, message_type=kind, group_id="1")
            else:
                sent = message(content, 2, kind, "1", arrays)
            [reply] = grid.send_and_receive([sent], timeout=60)
        if reply.has_error():
            return "error", reply.error.code
        body = json.loads(str(reply.content["fedpriv"]["body"]))
        found = reply.content.array_records.get("arrays", {})
        shapes = {name: (a.dtype, a.shape, len(a.data)) for name, a in found.items()}
        return without_what_was_paid(body), shapes

    def handed_on(self) -> Any:
        """What leaves the house, or may: the report."""
        path = self.setting.folder / "state" / "budget.json"
        if self.was_full or not path.exists():
            return None  # it may be an old one
        return without_what_was_paid(json.loads(path.read_text()))

    def propose(self, what: tuple[str, int]) -> tuple[Body, str, None]:
        job, number = what
        changes: dict[str, Any] = [
            {}, {"steps": 3}, {"steps": 10**6}, {"fields": ("prompt", "completion")},
            {"method": "magic"}, {"vector_digest": "sha256:" + "0" * 64},
        ][number]  # fmt: skip
        return self.setting.change(job_id=job, **changes), QUERY, None

    def step(self, what: tuple[str, int]) -> tuple[Body, str, ArrayRecord]:
        job, slot = what
        asked = request(slot).model_copy(update={"job_id": job})
        return asked, TRAIN, as_arrays(public(self.setting.vector))

    def odd_step(self, number: int) -> tuple[Body, str, ArrayRecord | None]:
        vector = self.setting.vector
        odd = [np.zeros_like(vector), 1e6 * np.ones_like(vector), vector[:-1], None][number]
        return request(0), TRAIN, None if odd is None else as_arrays(public(odd))

    def report(self, job: str) -> tuple[Body, str, None]:
        return ReportRequest(job_id=job), REPORT, None

    def adapter(self, job: str) -> tuple[Body, str, ArrayRecord]:
        values, proposal = self.setting.vector, self.setting.change(job_id=job)
        handover = Handover(proposal=proposal, values_digest=values_digest(values))
        return handover, ADAPTER, as_arrays(public(values))

    def garbage(self, kind: str) -> tuple[RecordDict, str, None]:
        return RecordDict({"fedpriv": ConfigRecord({"body": "{]"})}), kind, None


def without_what_was_paid(said: Any) -> Any:
    if isinstance(said, dict):
        return {key: without_what_was_paid(v) for key, v in said.items() if key not in PAID}
    return [without_what_was_paid(one) for one in said] if isinstance(said, list) else said


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: Any, model_folder: Callable[..., Path]) -> Iterator[list[World]]:
    """The second one has a record more."""
    folder = tmp_path_factory.mktemp("neighbours")
    model = model_folder("llama")
    made = [World(folder / str(extra), model, extra) for extra in (False, True)]
    with pytest.MonkeyPatch.context() as patched:
        disturb(patched, made)
        yield made


_AT: list[World] = []  # whose turn it is


def disturb(patched: pytest.MonkeyPatch, worlds: list[World]) -> None:
    """Let the disk be full, time pass with each token, and the long record fail."""
    replacing, usage = files.replacing, shutil.disk_usage
    compute, batch = DpLora.clipped_sum, Worker.batch

    @contextmanager
    def on_the_disk(*arguments: Any, **options: Any) -> Iterator[Path]:
        if _AT[0].full:
            raise OSError(errno.ENOSPC, "No space left on device")
        with replacing(*arguments, **options) as path:
            yield path

    def computed(method: Any, worker: Any, units: Any, *rest: Any) -> Any:
        for place in range(len(units)):
            _AT[0].clock.now += sum(len(example.input_ids) for example in units[place]) / 1e3
        return compute(method, worker, units, *rest)

    def batched(worker: Any, examples: Any, length: int) -> Any:
        if any(len(example.input_ids) == worker.recipe.model.max_length for example in examples):
            raise ValueError("the long record fails")
        return batch(worker, examples, length)

    time = SimpleNamespace(
        monotonic=lambda: _AT[0].clock.monotonic(), sleep=lambda s: _AT[0].clock.sleep(s)
    )
    patched.setattr(ticks, "time", time)
    patched.setattr("fedpriv_client.own_records.time", time)
    patched.setattr(files, "replacing", on_the_disk)
    patched.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=0) if _AT[0].full else usage(path)
    )
    patched.setattr(DpLora, "clipped_sum", computed)
    patched.setattr(Worker, "batch", batched)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@example([("disk", True), ("report", "job-1"), ("step", ("job-1", 1)), ("adapter", "job-1")])
@example([("disk", True), ("propose", ("job-2", 0)), ("step", ("job-2", 0)), ("disk", False)])
@given(actions=st.lists(ACTIONS, min_size=4, max_size=14))
def test_one_record_more_is_nowhere_to_be_seen(worlds: list[World], actions: list[Action]) -> None:
    usual: list[Action] = [("propose", ("job-1", 0)), ("step", ("job-1", 0))]
    for number, world in enumerate(worlds):
        _AT[:] = [world]
        world.begin()
        try:
            for action in (*usual, *actions):
                world.do(action, bool(number))
        finally:
            world.full = False
            world.site.close()
    for one, other in zip(*(world.seen for world in worlds), strict=True):
        assert one == other


def test_what_is_compared_is_all_there(worlds: list[World]) -> None:
    """Else a site that is silent would pass."""
    world = worlds[1]
    _AT[:] = [world]
    world.begin()
    for action in (
        ("propose", ("job-1", 0)), ("step", ("job-1", 0)), ("report", "job-1"), ("disk", True),
        ("step", ("job-1", 1)), ("adapter", "job-1"), ("garbage", QUERY), ("restart", None),
    ):  # fmt: skip
        world.do(action, True)
    world.site.close()
    answers = [answer for _, answer, _, _ in world.seen]
    assert answers[0][0]["declared_size"] == 24 and answers[1][1] and answers[4][1]
    assert answers[2][0]["epsilon_spent"] > 0
    assert "refused" in answers[6][0] and callable(write_budget_report)
    took = [took for _, _, took, _ in world.seen]
    assert took[0] > 0.5 and took[1] > 0 and took[4] > 0
    assert world.seen[1][3]["timing"].startswith("public ticks")
