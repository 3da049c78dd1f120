"""Wait until it is worth asking the sites of a job, and say how each site stands."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from fedpriv.config.duration import seconds
from fedpriv.errors import RoundError
from fedpriv.process import Status
from fedpriv.report.rundir import SiteState
from fedpriv_server.door import Door
from fedpriv_server.grid import JobGrid
from fedpriv_server.job import Job
from fedpriv_strategies.rounds import state_of

log = logging.getLogger(__name__)
LOOK = 0.2  # seconds between two checks of which sites are connected
REMIND = 60.0  # seconds between two log lines about missing sites
AGAIN = (1.0, 60.0)  # seconds before a failed round is asked for again: at first, at most


class Assembly:
    """Waits until it is worth asking: first for all sites, later only for as many as are needed.

    It is called before every round, and with the error of a round that failed.

    Args:
        between: called while no request is open; it may raise the error that ends the job.
    """

    def __init__(
        self, job: Job, grid: JobGrid, door: Door, status: Status, between: Callable[[], None]
    ) -> None:
        self._job, self._config, self._grid = job, job.config, grid
        self._door, self._status, self._between = door, status, between
        self._lock = threading.Lock()  # for the rows of sites
        self._begun = False
        self._pause = AGAIN[0]
        self._states: dict[str, str] = {}

    def __call__(self, error: RoundError | None) -> None:
        if error is None:
            self._pause = AGAIN[0]
        elif not error.may_heal:
            raise error
        else:
            level = logging.INFO if self._job.strategy.waiting else logging.WARNING
            log.log(level, "%s Asking again in %.0f s.", error, self._pause)
            self.tell(state="waiting", problem=str(error))
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, AGAIN[1])
        self._wait()
        for node in self._grid.newcomers():  # a site that refused may have changed its mind
            self._job.strategy.refused.pop(node, None)
        self.tell(state="running", problem="")

    def _wait(self) -> None:
        """Wait until `min_sites` are connected. The first time, also wait a while for the rest."""
        config = self._config
        assert config.server is not None
        patient = remind = time.monotonic()
        if not self._begun:
            patient += seconds(config.server.wait)
        while True:
            self._between()
            there, missing = len(self._grid.get_node_ids()), self.missing()
            now = time.monotonic()
            if not missing or (there >= config.job.min_sites and now >= patient):
                break
            if now >= remind:
                remind = now + REMIND
                text = f"Waiting for {', '.join(map(self._door.named, missing))}; {there} there."
                log.info(text)
                self.tell(state="waiting", problem=text)
            time.sleep(LOOK)
        self._begun = True

    def missing(self) -> list[str]:
        """Return the names of the sites that are not connected."""
        names = self._grid.names
        there = {names.get(node) for node in self._grid.get_node_ids()}
        return sorted({site.name for site in self._config.sites} - there)

    def tell(self, states: dict[str, str] | None = None, **facts: Any) -> None:
        """Write down what is known of each site, and other facts of the job.

        Args:
            states: site → how it answered in a round.
        """
        with self._lock:
            self._states |= states or {}
            heads, said = self._job.strategy.heads, self.said()
            shown = self._door.seen(said)
            for name, row in shown.items():
                head = heads.get(name)
                ledger = "" if head is None else f"{head.rows}:{head.hash}"  # as `--head` reads
                row |= {"last": said[name], "ledger": ledger}
            self._status.update(sites=shown, **facts)

    def account(self) -> dict[str, dict[str, Any]]:
        """Return for each site in how many rounds it took part, and how it answered last."""
        rows = [row["sites"].items() for row in self._job.rounds]
        took = Counter(name for row in rows for name, one in row if one["status"] == "ok")
        said = self.said().items()
        lasts = {name: last.replace(SiteState.NOT_ASKED, SiteState.AWAY) for name, last in said}
        return {name: {"rounds": took[name], "last": last} for name, last in lasts.items()}

    def said(self) -> dict[str, str]:
        """Return for each site how it answered last, or why it refused."""
        names, strategy = self._door.broker.names, self._job.strategy
        accepted = {one.site: str(SiteState.ACCEPTED) for one in list(strategy.offers.values())}
        answers = [*strategy.waiting.items(), *strategy.refused.items()]
        known = accepted | self._states | {names.get(node): state_of(one) for node, one in answers}
        return {site.name: known.get(site.name, SiteState.NOT_ASKED) for site in self._config.sites}
