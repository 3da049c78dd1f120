"""What becomes of the jobs of a queue, whatever becomes of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv.errors import RoundError
from fedpriv.process import Status
from fedpriv_server import lasting
from fedpriv_server.job_queue import Queue
from fedpriv_server.lasting import Coordinator
from fedpriv_server.run_directory import RunDirectory
from tests.server.test_job_queue import job

Work = Callable[[RunDirectory, Callable[[], None]], None]


class Place:
    """A coordinator whose jobs do as they are told, and to which nobody is connected."""

    def __init__(self, folder: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.queue = folder, queue
        self.works: list[Work] = []
        self.ran: list[str] = []

        def run_job(config: Any, run: RunDirectory, link: Any, between: Callable[[], None]) -> None:
            self.ran.append(config.job.name)
            run.ready()
            self.works.pop(0)(run, between)

        monkeypatch.setattr(lasting, "run_job", run_job)
        monkeypatch.setattr(lasting, "LOOK", 0.0)

    def coordinator(self, *members: str) -> Coordinator:
        broker = SimpleNamespace(names={})
        door = SimpleNamespace(listeners=[], seen=lambda names: {}, broker=broker)
        figures = SimpleNamespace(turn_to=lambda out, rounds: None)
        link: Any = SimpleNamespace(
            door=door, grid=SimpleNamespace(get_node_ids=list, broker=broker), figures=figures
        )
        status = Status(self.folder, state="waiting", job="", sites={}, problem="")
        return Coordinator(self.queue, self.folder, link, set(members or "ab"), status)

    def submit(self, name: str, work: Work) -> int:
        self.works.append(work)
        return self.queue.submit(*job(self.folder, name))

    def became(self, number: int) -> tuple[str, str]:
        found = self.queue.job(number)
        return found.state, found.why


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with Queue.open(tmp_path) as queue:
        yield Place(tmp_path, queue, monkeypatch)


def finishes(run: RunDirectory, between: Callable[[], None]) -> None:
    run.keep_end("All rounds are done.", {"a": {"rounds": 3, "last": "ok"}})
    run.stop("finished")


def raising(error: BaseException) -> Work:
    def work(run: RunDirectory, between: Callable[[], None]) -> None:
        run.stop("interrupted")
        raise error

    return work


@pytest.mark.slow
def test_one_after_the_other_and_a_failure_holds_up_none(place: Place) -> None:
    place.submit("x", raising(RoundError("too few")))
    place.submit("y", raising(ValueError("a secret")))
    place.submit("z", finishes)
    coordinator = place.coordinator()
    for _ in range(4):
        coordinator.work()
    assert place.ran == ["x", "y", "z"]
    assert [place.became(number) for number in (1, 2, 3)] == [
        ("failed", "too few"),
        ("failed", "ValueError: see the server's log."),
        ("finished", "All rounds are done."),
    ]
    assert place.queue.job(3).sites == {"a": {"rounds": 3, "last": "ok"}}


@pytest.mark.slow
def test_one_is_aborted_between_two_rounds_and_tried_again(place: Place) -> None:
    def is_aborted(run: RunDirectory, between: Callable[[], None]) -> None:
        between()
        place.queue.abort(1)
        between()

    place.submit("x", is_aborted)
    place.works.append(finishes)
    coordinator = place.coordinator()
    coordinator.work()
    state, why = place.became(1)
    assert state == "aborted" and "spent stays spent" in why
    place.queue.retry(1)
    coordinator.work()
    assert place.became(1) == ("finished", "All rounds are done.")


@pytest.mark.slow
def test_one_that_ran_when_the_server_was_stopped_goes_on(place: Place) -> None:
    place.submit("x", raising(KeyboardInterrupt()))
    place.works.append(finishes)
    with pytest.raises(KeyboardInterrupt):
        place.coordinator().work()
    [path] = (place.folder / "runs").iterdir()
    first = json.loads((path / "run.json").read_text())["job_id"]
    assert place.became(1) == ("running", "")
    place.coordinator().work()
    assert place.became(1)[0] == "finished"
    assert json.loads((path / "run.json").read_text())["job_id"] == first


@pytest.mark.slow
def test_one_whose_end_was_not_noted_is_not_run_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit("x", finishes)
    with monkeypatch.context() as patch:
        patch.delattr(Queue, "end")  # as if it was killed just then
        with pytest.raises(AttributeError):
            place.coordinator().work()
    place.coordinator().work()
    assert place.became(1) == ("finished", "All rounds are done.")
    assert place.ran == ["x"]


@pytest.mark.slow
def test_a_job_of_sites_that_have_left_fails_in_words(place: Place) -> None:
    place.submit("x", finishes)
    place.coordinator("a", "c").work()
    assert place.became(1) == ("failed", "b: not in this consortium.")
    assert place.ran == []


@pytest.mark.slow
def test_what_is_owed_of_a_job_that_goes_on_is_left_to_it(place: Place) -> None:
    def owes(run: RunDirectory, between: Callable[[], None]) -> None:
        run.owe(reports={"b"}, adapters=())
        raise RoundError("too few")

    place.submit("x", owes)
    coordinator = place.coordinator()
    coordinator.work()
    assert [owed.sites for owed in coordinator._owed.values()] == [{"b"}]
    assert [owed.sites for owed in place.coordinator()._owed.values()] == [{"b"}]
    place.queue.retry(1)
    seen: list[int] = []

    def goes_on(run: RunDirectory, between: Callable[[], None]) -> None:
        seen.append(len(coordinator._owed))
        finishes(run, between)

    place.works.append(goes_on)
    coordinator.work()
    assert seen == [0]


@pytest.mark.slow
def test_a_run_directory_that_was_damaged_holds_up_no_other_job(place: Place) -> None:
    place.submit("x", raising(KeyboardInterrupt()))
    place.submit("y", finishes)
    with pytest.raises(KeyboardInterrupt):
        place.coordinator().work()
    (place.queue.job(1).folder(place.folder) / "run.json").write_text("half")
    coordinator = place.coordinator()
    for _ in range(2):
        coordinator.work()
    assert place.became(1)[0] == "failed" and "can't be read" in place.became(1)[1]
    assert place.became(2)[0] == "finished"
    place.coordinator()
