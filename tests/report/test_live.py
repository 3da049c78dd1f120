"""The page of a job that goes on: how often it is written, and that it can't end the job."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path

import pytest

from fedpriv.report import live
from fedpriv.report.live import PAUSE, TIMES, LiveReport


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("cost", [0.05, 0.4, 3.0])
def test_the_page_takes_a_small_part_of_the_time_however_long_a_round_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cost: float
) -> None:
    clock, written = Clock(), []

    def write(run_dir: Path) -> Path:
        written.append(clock.now)
        clock.now += cost
        return run_dir

    monkeypatch.setattr(live, "write_report", write)
    report = LiveReport(tmp_path, clock)
    for _ in range(4000):
        report.update()
        clock.now += 0.3  # a round
    assert written[0] == 1000.0
    between = [after - before - cost for before, after in pairwise(written)]
    assert len(between) > 3
    assert min(between) >= max(PAUSE, TIMES * cost) - 1e-6
    assert max(between) <= max(PAUSE, TIMES * cost) + 0.3 + 1e-6
    assert cost * len(written) / (clock.now - 1000.0) < 0.03


def test_a_page_that_can_not_be_written_ends_no_job_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    report = LiveReport(tmp_path, clock)  # no run
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            report.update()
            clock.now += 100
    assert len(caplog.records) == 1
    assert "run.json" in caplog.text
