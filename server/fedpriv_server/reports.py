"""Collect the budget reports that the sites have signed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pydantic import ValidationError

from fedpriv.errors import FedprivError, ProtocolError
from fedpriv.protocol import MAX_EPSILON, ReportRequest
from fedpriv.report import received
from fedpriv.report.budget import BudgetReport
from fedpriv_server.run_directory import RunDirectory
from fedpriv_strategies.messages import REPORT, Nodes, ask, body_of, message

log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds


def collect_reports(grid: Nodes, run: RunDirectory, names: Mapping[int, str]) -> list[str]:
    """Write ``sites/NAME/budget.json`` of every site that is there; gives those it has none of.

    A report is the site's word: that it is whole and of this job is checked, not that it is true.
    """
    missing, job = set(names.values()), run.info["job_id"]
    there = [node for node in grid.get_node_ids() if node in names]
    for life in (True, None):  # sites of an older version refuse the first
        asked = ReportRequest(job_id=job, life=life)
        messages = [message(asked, node, REPORT, "report") for node in there]
        there = []
        for node, reply in ask(grid, messages, PATIENCE):
            name = names[node]
            try:
                report = _report(body_of(reply), name, job)
            except FedprivError as error:
                if life:
                    there.append(node)
                else:
                    log.warning("Site %s: its budget report was not kept: %s", name, error)
                continue
            folder = run.site_folder(name)
            folder.mkdir(parents=True, exist_ok=True)
            received.write(report, folder / "budget.json")
            missing.discard(name)
    if missing:
        log.warning("No budget report from %s.", ", ".join(sorted(missing)))
    return sorted(missing)


def _report(body: object, name: str, job: str) -> BudgetReport:
    try:
        report = BudgetReport.model_validate_json(body if isinstance(body, str) else "")
    except ValidationError:
        raise ProtocolError("It is not a budget report.") from None
    if report.site != name or report.job != job:
        raise ProtocolError("It is of another site or job.")
    figures = (figure for claim in received.claims_of(report) for figure in claim[1:])
    if not all(figure <= MAX_EPSILON for figure in figures):
        raise ProtocolError("It states an ε that nobody has.")
    received.verify(report)
    return report
