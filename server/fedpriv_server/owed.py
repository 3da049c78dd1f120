"""What is owed when a job has ended: reports of sites, and word of the adapter to them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fedpriv.errors import FedprivError
from fedpriv.plain_training.adapter import read_facts
from fedpriv.privacy.mechanism.privatised import post_process
from fedpriv.public_update.optimizer import vector_of
from fedpriv.report.html import write_report
from fedpriv_server.grid import JobGrid
from fedpriv_server.handover import hand_over
from fedpriv_server.reports import collect_reports
from fedpriv_server.run_directory import RunDirectory

log = logging.getLogger(__name__)
AGAIN = (60.0, 3600.0)  # seconds before who did not answer is asked again: at first, at most


class Owed:
    """Asks the sites of an ended run, whenever one is back, for what is owed.

    Args:
        clock: seconds, from anywhere on.
    """

    def __init__(self, run: RunDirectory, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._next: dict[str, float] = {}  # site → when to ask it again
        self._pause: dict[str, float] = {}

    @property
    def sites(self) -> set[str]:
        """Names of the sites of which a report is missing, or that have to hear of the adapter."""
        return {name for names in self._run.owed.values() for name in names}

    def settle(self, grid: JobGrid) -> None:
        """Ask those that are there, each again after a while, and ever less often.

        Whatever goes wrong is logged: the job has ended all the same.
        """
        try:
            self._settle(grid)
        except (OSError, FedprivError) as error:
            log.error("Not all that is owed was fetched: %s", error)

    def _settle(self, grid: JobGrid) -> None:
        sites = self.sites
        names, now, run = grid.names, self._clock(), self._run
        there = {
            node: names[node]
            for node in grid.get_node_ids()
            if names[node] in sites and now >= self._next.get(names[node], now)
        }
        if not there:
            return
        for name in there.values():
            pause = self._pause.get(name, AGAIN[0])
            self._next[name], self._pause[name] = now + pause, min(2 * pause, AGAIN[1])
        reports, adapters = map(set, (run.owed["reports"], run.owed["adapters"]))
        asked = {node: name for node, name in there.items() if name in reports}
        got = {*asked.values()} - {*(collect_reports(grid, run, asked) if asked else ())}
        told = {node: name for node, name in there.items() if name in adapters}
        heard = {*told.values()} - {*(self._hand_over(grid, told) if told else ())}
        run.owe(reports=reports - got, adapters=adapters - heard)
        if got:
            write_report(run.path, alive=False)
            log.info("Job %s: the late report of %s is in.", run.info["job_id"], ", ".join(got))

    def _hand_over(self, grid: JobGrid, names: dict[int, str]) -> list[str]:
        kept, folder = self._run.checkpoint(), self._run.path / "adapter"
        if kept is None:
            return sorted(names.values())
        vector = post_process(vector_of, kept.tensors)
        return hand_over(grid, names, read_facts(folder).proposal, vector, folder)
