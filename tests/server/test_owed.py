"""What is fetched and handed over when a site is back after the end of a job."""

from __future__ import annotations

from collections.abc import Callable
from decimal import InvalidOperation
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import FedprivError
from fedpriv_server import owed as module
from fedpriv_server.owed import AGAIN, Owed
from fedpriv_server.run_directory import RunDirectory


class Sites:
    """A grid of sites that come and go."""

    def __init__(self) -> None:
        self.names = {2: "a", 3: "b", 4: "c"}
        self.there: list[int] = []

    def get_node_ids(self) -> list[int]:
        return self.there


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    info = {"job_id": "j", "status": "finished", "job": {"engine": "network"}}
    made = RunDirectory(tmp_path, info)
    made.owe(reports={"a", "b"}, adapters={"b", "c"})
    return made


def test_each_is_asked_when_it_is_back_and_again_after_a_while(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []
    fails: set[str] = {"a"}

    def answers(kind: str) -> Callable[..., list[str]]:
        def ask(grid: Any, *others: Any) -> list[str]:
            names = next(item for item in others if isinstance(item, dict))
            asked.append((kind, sorted(names.values())))
            return sorted(set(names.values()) & fails)

        return ask

    written: list[Path] = []
    monkeypatch.setattr(module, "collect_reports", answers("report"))
    monkeypatch.setattr(module, "write_report", lambda path, alive: written.append(path))
    monkeypatch.setattr(
        Owed, "_hand_over", lambda self, grid, names: answers("adapter")(grid, names)
    )
    now, sites = [0.0], Sites()
    owed = Owed(run, lambda: now[0])
    grid: Any = sites
    owed.settle(grid)
    assert asked == []
    sites.there = [2, 3]
    owed.settle(grid)
    assert asked == [("report", ["a", "b"]), ("adapter", ["b"])]
    assert run.owed == {"reports": ["a"], "adapters": ["c"]} and written == [run.path]
    owed.settle(grid)
    assert len(asked) == 2  # not at once again
    fails.clear()
    now[0], sites.there = AGAIN, [2, 3, 4]
    owed.settle(grid)
    assert asked[2:] == [("report", ["a"]), ("adapter", ["c"])]
    assert owed.sites == set()
    owed.settle(grid)
    assert len(asked) == 4


def test_a_report_that_nobody_thought_of_stops_no_server(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(*_: Any) -> Any:
        raise InvalidOperation

    monkeypatch.setattr(module, "collect_reports", odd)
    sites: Any = Sites()
    sites.there = [2]
    Owed(run).settle(sites)
    assert "Not all that is owed was settled: InvalidOperation" in caplog.text


def test_an_adapter_that_is_gone_is_said(run: RunDirectory) -> None:
    assert Owed(run)._hand_over(Sites(), {3: "b"}) == ["b"]  # type: ignore[arg-type]
    (run.path / "checkpoint").mkdir()
    (run.path / "checkpoint" / "latest.safetensors").write_bytes(b"half")
    with pytest.raises(FedprivError, match="is not a checkpoint"):
        Owed(run)._hand_over(Sites(), {3: "b"})  # type: ignore[arg-type]
