"""Write the report of a running job now and then, without delaying the job."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from fedpriv.report.html import write_report

log = logging.getLogger(__name__)
PAUSE = 10.0  # seconds between two pages, at least
TIMES = 50.0  # or this many times as long as the last page took: at most a fiftieth of the time


class LiveReport:
    """Writes the report of a running job, though not after every round.

    A browser reads the page again by itself for as long as the page says that the job runs. An
    error is logged once and ends nothing.

    Args:
        run_dir: the run's directory.
        clock: gives seconds since any fixed time.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        import matplotlib.figure  # noqa: F401  # here, so that no page's time includes the import

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
                log.warning("%s: the page of progress was not written: %s", self._run_dir, error)
            self._failed = True
        ended = self._clock()
        self._next = ended + max(PAUSE, TIMES * (ended - begun))
