"""Turn a run directory into one page: `report.html`, which needs no other file.

Privacy
    The page holds what the run directory holds: costs of released values, scores on public
    or coordinator-owned records, and bytes and seconds as the server saw them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv.auditing import result
from fedpriv.auditing.result import Audit, read_audit
from fedpriv.errors import LedgerCorruptError
from fedpriv.files import write_atomic
from fedpriv.report import received
from fedpriv.report.alike import assumptions, rows_of, said_together, shared
from fedpriv.report.budget import BudgetReport
from fedpriv.report.figures import give_or_take, worse
from fedpriv.report.lifetime import for_one, in_words
from fedpriv.report.page_parts import RULES, css_colours, score_rows, templates
from fedpriv.report.participation import Participation, older_reports, participation
from fedpriv.report.progress import progress_of
from fedpriv.report.received import StatedClaim
from fedpriv.report.rundir import Look, Round, RunDirectory, read_run


@dataclass(frozen=True)
class SiteView:
    """A row of the sites' table."""

    report: BudgetReport
    steps: int
    sample_rate: str
    noise_multiplier: str
    signature: str


def write_report(run_dir: Path, *, alive: bool = True) -> Path:
    """Write `run_dir`/report.html and return its path.

    If a job is still running, or was interrupted, the page shows what is known so far.
    Signatures are checked. One that does not match is shown as such, loudly.

    Args:
        alive: whether to believe run.json if it says that the job is running. A killed process
            could not write there that the job ended.

    Raises:
        RunError: `run_dir` is no run directory, or lacks what its status promises.
        ConfigError: a file is malformed; the error names the file and the key.
    """
    directory = read_run(run_dir)
    if directory.run.status == "running" and not alive:
        ended = directory.run.model_copy(update={"status": "interrupted"})
        directory = replace(directory, run=ended)
    path = run_dir / "report.html"
    found = run_dir / result.FILE
    context = _context(directory, read_audit(found) if found.exists() else None)
    write_atomic(path, templates().get_template("report.html.j2").render(context))
    return path


def _context(directory: RunDirectory, audit: Audit | None) -> dict[str, Any]:
    from fedpriv.report.curves import NAMED_LINES, charts  # imports markupsafe

    run, rounds, reports = directory.run, directory.rounds, directory.reports
    looks = [row.held_out for row in rounds if row.held_out is not None]
    moved: list[Round | Look] = [*rounds, *looks]
    sites = [_site_view(report) for report in reports]
    silent = sorted({*directory.site_names} - {report.site for report in reports})
    took_part = participation(directory)
    claims = [(report, claim) for report in reports for claim in received.claims_of(report)]
    worst = max(sites, key=lambda site: site.report.epsilon_committed, default=None)
    return {
        "run": run,
        "rounds": rounds,
        "sites": sites,
        "spent": rows_of(sites, _spent),
        "said_together": said_together,
        "worst": worst,
        "silent": silent,
        "older": older_reports(directory),
        "scores": score_rows(run.model.task, run.baseline, directory.last_evaluation),
        "evaluated": directory.last_evaluation,
        "worse": "" if run.status == "running" else run.ended_early or _worse(directory),
        "bytes_up": sum(one.bytes_up for one in moved),
        "bytes_down": sum(one.bytes_down for one in moved),
        "seconds": math.fsum(row.seconds or 0 for row in rounds),
        "progress": progress_of(run, rounds),
        "participation": rows_of(took_part, _took_part),
        "lives": _lives(reports),
        "for_one": _for_one(reports),
        "life": rows_of(claims, _of_a_life),
        "audit": audit,
        "audit_words": result,
        "looks": [row for row in rounds if row.held_out is not None],
        "give_or_take": give_or_take,
        "totals": received.totals(reports),
        "two_claims": rows_of((r for r in reports if r.budget_alone is not None), _claimed_twice),
        "not_private": [r.site for r in reports if not r.private],
        "stamped": not directory.is_private,
        "simulated": [r.site for r in reports if r.simulated],
        "tampered": [site.report.site for site in sites if site.signature == "changed"],
        "weak_delta": [r.site for r in reports if r.delta >= 1 / r.declared_size],
        "shared": lambda field: shared(reports, field),
        "assumptions": assumptions(reports),
        "rules": RULES,
        "charts": charts(directory),
        "css_colours": css_colours,
        "named_lines": NAMED_LINES,
        "of_sites": len(directory.site_names),
    }


def _spent(site: SiteView) -> tuple[object, ...]:
    """Return what the first table says about a site."""
    one = site.report
    figures = one.epsilon_spent, one.epsilon_committed, one.budget, one.delta
    return (*figures, one.unit, one.private, site.sample_rate, site.noise_multiplier)


def _lives(reports: Sequence[BudgetReport]) -> list[tuple[str, str]]:
    """Return in words what this job takes of budgets for life, each with the sites it holds for."""
    held = [report for report in reports if report.life is not None]
    return [(in_words(life), sites) for life, sites in shared(held, "life")]


def _for_one(reports: Sequence[BudgetReport]) -> str:
    """Say what the largest claim means for one unit of its site."""
    worst = max(reports, key=lambda report: received.claims_of(report)[-1].committed, default=None)
    if worst is None:
        return ""
    committed = received.claims_of(worst)[-1].committed
    figures = {f"by all that {worst.site} can ever release": committed}
    return for_one(worst.unit, worst.delta, figures)


def _of_a_life(line: tuple[BudgetReport, StatedClaim]) -> tuple[object, ...]:
    report, claim = line
    return claim, report.rule, report.budget_alone is None


def _took_part(site: Participation) -> tuple[object, ...]:
    spent = None if site.last is None else site.last.epsilon_spent
    return site.took_part, site.missed, spent


def _claimed_twice(report: BudgetReport) -> tuple[object, ...]:
    """Return what the table of two claims says about the report of a site in secure sums."""
    trusted = report.max_colluding, report.epsilon_committed, report.budget
    alone = report.epsilon_alone_spent, report.epsilon_alone_committed, report.budget_alone
    return (*trusted, *alone)


def _site_view(report: BudgetReport) -> SiteView:
    events = [e for e in report.events if e.job == report.job] or list(report.events)
    return SiteView(
        report=report,
        steps=sum(event.count for event in report.events),
        sample_rate=_range(event.sample_rate for event in events),
        noise_multiplier=_range(event.noise_multiplier for event in events),
        signature=_signature(report),
    )


def _signature(report: BudgetReport) -> str:
    if report.signature is None:
        return "unsigned"
    try:
        received.verify(report)
    except LedgerCorruptError:
        return "changed"
    return "valid"


def _range(values: Iterable[float]) -> str:
    shown = [f"{value:.4g}" for value in sorted(set(values))]
    if not shown:
        return "–"
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} – {shown[-1]}"


def _worse(directory: RunDirectory) -> str:
    before, after = directory.run.baseline, directory.last_evaluation
    return worse(before.eval_loss if before else None, after.eval_loss if after else None)
