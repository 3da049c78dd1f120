"""How far a running job is, for its page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fedpriv.report.rundir import Round, Run

RECENT = 10  # newest rounds, from which the time of the next ones is estimated


@dataclass(frozen=True)
class Progress:
    """The progress of a running job.

    Attributes:
        left: the estimated seconds left; None if they are not known, or not public.
        written: the time of the estimate.
        refresh: seconds after which a browser reads the page again.
    """

    done: int
    of: int
    left: float | None
    written: datetime
    refresh: int = 20


def progress_of(run: Run, rounds: Sequence[Round]) -> Progress | None:
    """Return how far a job is. Return None if it is not running."""
    if run.status != "running":
        return None
    recent, done = rounds[-RECENT:], len(rounds)
    took = [row.seconds for row in recent if row.seconds is not None]
    left = max(0, run.job.rounds - done) * math.fsum(took) / len(took) if took else None
    return Progress(done, run.job.rounds, left, datetime.now(UTC))
