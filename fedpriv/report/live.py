"""The report of a job that goes on, written anew now and then without holding the job up."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from fedpriv.report.html import write_report

log = logging.getLogger(__name__)
PAUSE = 10.0  # seconds between two pages, at least
TIMES = 50.0  # and as many times as long as the last page took: at most a fiftieth of the time


class LiveReport:
    """Writes the report of a running job, though not after every round.

    A browser reads the page again by itself for as long as it says that the job runs. Whatever
    goes wrong with it is logged once and ends nothing.

    Args:
        run_dir: the run's directory.
        clock: gives seconds, from any start.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        import matplotlib.figure  # noqa: F401  # once; it is no part of what a page costs

        self._run_dir, self._clock = run_dir, clock
        self._next = -math.inf
        self._failed = False

    def update(self) -> None:
        """Write the page, unless the last one is too new."""
        begun = self._clock()
        if begun < self._next:
            return
        try:
            write_report(self._run_dir)
        except Exception as error:
            if not self._failed:
                log.warning("%s: no page of how far the job is: %s", self._run_dir, error)
            self._failed = True
        ended = self._clock()
        self._next = ended + max(PAUSE, TIMES * (ended - begun))
