"""How far a job is."""

from __future__ import annotations

from typing import Any

import pytest

from fedpriv.report.progress import RECENT, progress_of
from fedpriv.report.rundir import Round, Run


def run(status: str, rounds: int = 40) -> Run:
    fields: dict[str, Any] = {
        "format": 1,
        "job": {"name": "trial", "method": "dp-lora", "rounds": rounds},
        "job_id": "0123",
        "status": status,
        "started": "2026-11-21T01:05:12+00:00",
        "config_digest": "sha256:00",
        "versions": {},
        "model": {"name": "embedded", "task": "causal-lm", "digest": "d"},
        "private": True,
    }
    return Run.model_validate(fields)


def done(*seconds: float) -> list[Round]:
    return [
        Round(round=number, bytes_up=0, bytes_down=0, seconds=each, sites={})
        for number, each in enumerate(seconds, start=1)
    ]


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_a_job_that_does_not_run_makes_no_progress(status: str) -> None:
    assert progress_of(run(status), done(1.0)) is None


def test_what_is_left_goes_as_the_last_rounds_went() -> None:
    found = progress_of(run("running"), done(*[100.0] * 5, *[2.0] * RECENT))
    assert found is not None
    assert (found.done, found.of) == (15, 40)
    assert found.left == pytest.approx(25 * 2.0)


def test_before_the_first_round_nobody_knows() -> None:
    found = progress_of(run("running"), [])
    assert found is not None and found.left is None
