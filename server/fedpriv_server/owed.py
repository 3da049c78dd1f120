"""What is owed after a job: the sites owe signed budget reports, and the server the adapter."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from fedpriv.adapter_facts import read_facts
from fedpriv.errors import FedprivError, ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process, require_privatised
from fedpriv.protocol import (
    MAX_EPSILON,
    Handover,
    Proposal,
    Received,
    Refusal,
    ReportRequest,
    values_digest,
)
from fedpriv.report import received
from fedpriv.report.budget import BudgetReport
from fedpriv.report.html import write_report
from fedpriv_server.grid import JobGrid
from fedpriv_server.run_directory import RunDirectory, site_folder
from fedpriv_strategies.averaged import adapter_of
from fedpriv_strategies.messages import (
    ADAPTER,
    REPORT,
    Nodes,
    answer_of,
    as_arrays,
    ask,
    body_of,
    message,
)

log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds
SLOWEST = 1e6  # bytes a second, to all sites together: the slowest transfer that is waited for
AGAIN = 600.0  # seconds before a silent site is asked again


class Owed:
    """Settles what is owed with the sites of an ended run, whenever one of them is back.

    Args:
        clock: gives seconds since any fixed time.
    """

    def __init__(self, run: RunDirectory, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._next: dict[str, float] = {}  # site → time at which to ask it again

    @property
    def sites(self) -> set[str]:
        """Names of the sites whose report is missing, or that have not got the adapter."""
        return {name for names in self._run.owed.values() for name in names}

    def settle(self, grid: JobGrid) -> None:
        """Ask the sites that are connected. Each is asked again after a while.

        Errors are only logged, because the job has ended all the same.
        """
        try:
            self._settle(grid)
        except Exception as error:  # a site's report may hold something that no check foresaw
            log.error("Not all that is owed was settled: %s", str(error) or type(error).__name__)

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
        self._next |= dict.fromkeys(there.values(), now + AGAIN)
        reports, adapters = map(set, (run.owed["reports"], run.owed["adapters"]))
        asked = {node: name for node, name in there.items() if name in reports}
        got = {*asked.values()} - {*(collect_reports(grid, run, asked) if asked else ())}
        told = {node: name for node, name in there.items() if name in adapters}
        heard = {*told.values()} - {*(self._hand_over(grid, told) if told else ())}
        run.owe(reports=reports - got, adapters=adapters - heard)
        if got:
            write_report(run.path, alive=False)
            log.info("Job %s: the budget reports of %s are in.", run.info["job_id"], ", ".join(got))

    def _hand_over(self, grid: JobGrid, names: dict[int, str]) -> list[str]:
        kept = self._run.checkpoint()
        if kept is None:
            return sorted(names.values())
        vector = post_process(adapter_of, kept.tensors)
        return hand_over(grid, names, read_facts(self._run.path / "adapter").proposal, vector)


def collect_reports(grid: Nodes, run: RunDirectory, names: Mapping[int, str]) -> list[str]:
    """Write ``sites/NAME/budget.json`` for every connected site. Return sites without a report.

    A report is the site's word. It is checked to be whole and of this job, not to be true.
    """
    missing, job = set(names.values()), run.info["job_id"]
    there = [node for node in grid.get_node_ids() if node in names]
    asked = ReportRequest(job_id=job, life=True)
    messages = [message(asked, node, REPORT, "report") for node in there]
    for node, reply in ask(grid, messages, PATIENCE):
        name = names[node]
        try:
            report = _report(body_of(reply), name, job)
        except FedprivError as error:
            log.warning("Site %s: its budget report was not kept: %s", name, error)
            continue
        folder = site_folder(run.path, name)
        folder.mkdir(parents=True, exist_ok=True)
        received.write(report, folder / "budget.json")
        missing.discard(name)
    return sorted(missing)


def _report(body: object, name: str, job: str) -> BudgetReport:
    try:
        report = BudgetReport.model_validate_json(body if isinstance(body, str) else "")
    except ValidationError:
        raise ProtocolError("It is not a budget report.") from None
    if report.site != name or report.job != job:
        raise ProtocolError("It is for another site or job.")
    figures = (figure for claim in received.claims_of(report) for figure in claim[1:])
    if not all(figure <= MAX_EPSILON for figure in figures):
        raise ProtocolError("It states an ε that is impossibly large.")
    received.verify(report)
    return report


def hand_over(
    grid: Nodes, names: Mapping[int, str], proposal: Proposal, vector: Privatised[Vector]
) -> list[str]:
    """Send the adapter to sites that released something for it. Return those that didn't get it.

    The job is finished all the same, so errors are only logged. A site does not say whether it
    could keep the adapter.

    Args:
        names: node → site, for the sites to send it to.
        vector: (P,), the adapter's values.
    """
    missing = set(names.values())
    try:
        values = require_privatised(vector, "vector")
        body = Handover(proposal=proposal, values_digest=values_digest(values))
        arrays = as_arrays(vector)
        there = [node for node in grid.get_node_ids() if node in names]
        messages = [message(body, node, ADAPTER, "adapter", arrays) for node in there]
        patience = PATIENCE + len(messages) * values.nbytes / SLOWEST
        for node, reply in ask(grid, messages, patience):
            try:
                answer = answer_of(reply, Received)
                if isinstance(answer, Refusal):
                    raise ProtocolError(answer.reason)
                missing.discard(names[node])
            except FedprivError as error:
                log.warning("Site %s did not take the adapter: %s", names[node], error)
    except Exception as error:
        log.error("The adapter was not handed over: %s", error)
    return sorted(missing)
