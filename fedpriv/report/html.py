"""A run directory as one page: `report.html`, which needs nothing but itself.

Privacy
    The page holds what the run directory holds: released values' costs, scores on public
    or coordinator-owned records, bytes and seconds as the server saw them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.audit import words
from fedpriv.audit.result import FILE as AUDIT
from fedpriv.audit.result import TITLES, WORLDS, Audit, read_audit
from fedpriv.errors import LedgerCorruptError
from fedpriv.files import write_atomic
from fedpriv.report import budget
from fedpriv.report.budget import BudgetReport
from fedpriv.report.figures import amount, duration, give_or_take, score, small, upper, when
from fedpriv.report.rundir import Look, Round, RunDirectory, read_run

if TYPE_CHECKING:
    from jinja2 import Environment

MENTIONED = 6  # sites that are listed by name where they agree
RULES = {
    "plan": "One plan of private steps, fixed before the first release, for the whole life of"
    " the ledger. Steps that were skipped, failed or never reached stay charged.",
    "envelope": "A fixed number of private steps at a fixed worst sampling rate and noise,"
    " reserved before the first release and filled only by steps that cost no more.",
    "rdp": "A Rényi filter at a fixed order: every plan is debited before its first step, and one"
    " that would overrun the budget is refused, so the budget is the claim.",
    "sum": "Basic composition: the ε and δ of the separate plans are added up, and one that would"
    " overrun the budget is refused, so the budget is the claim.",
}


@dataclass(frozen=True)
class SiteView:
    """A row of the sites' table."""

    report: BudgetReport
    rounds_ok: int
    missed: str
    steps: int
    sample_rate: str
    noise_multiplier: str
    spent_share: float
    allocated_share: float
    signature: str
    fingerprint: str


def write_report(run_dir: Path) -> Path:
    """Write `run_dir`/report.html and return its path.

    A job that is still running, or was interrupted, gives a page of what there is so far.
    Signatures are checked; one that does not match is shown as such, loudly.

    Raises:
        RunError: `run_dir` is no run directory, or one without what its status promises.
        ConfigError: a file is malformed; names the file and the key.
    """
    directory = read_run(run_dir)
    path = run_dir / "report.html"
    found = run_dir / AUDIT
    context = _context(directory, read_audit(found) if found.exists() else None)
    write_atomic(path, templates().get_template("report.html.j2").render(context))
    return path


def templates(*packages: str) -> Environment:
    """The templates of the report, and before them those of packages whose pages look like it."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name, ".") for name in (*packages, "fedpriv.report")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        upper=upper,
        score=score,
        amount=amount,
        when=when,
        duration=duration,
        small=small,
    )
    return found


def _context(directory: RunDirectory, audit: Audit | None) -> dict[str, Any]:
    from fedpriv.report.charts import css_colours
    from fedpriv.report.curves import NAMED_LINES, POINTS, charts  # with markupsafe

    run, rounds, reports = directory.run, directory.rounds, directory.reports
    looks = [row.held_out for row in rounds if row.held_out is not None]
    moved: list[Round | Look] = [*rounds, *looks]
    sites = [_site_view(report, rounds) for report in reports]
    worst = max(sites, key=lambda site: site.report.epsilon_committed, default=None)
    return {
        "run": run,
        "rounds": rounds,
        "sites": sites,
        "worst": worst,
        "silent": [n for n in directory.site_names if n not in {r.site for r in reports}],
        "scores": _scores(directory),
        "evaluated": directory.last_evaluation,
        "bytes_up": sum(one.bytes_up for one in moved),
        "bytes_down": sum(one.bytes_down for one in moved),
        "seconds": math.fsum(row.seconds for row in rounds),
        "denoised": _denoised(rounds),
        "taken": _taken(rounds),
        "evolved": _evolved(rounds),
        "controlled": _controlled(rounds),
        "audit": audit,
        "audit_conclusion": "" if audit is None else words.conclusion(audit),
        "audit_verdict": words.verdict,
        "audit_shown": words.shown_with_chance,
        "audit_titles": TITLES,
        "audit_worlds": WORLDS,
        "looks": [row for row in rounds if row.held_out is not None],
        "give_or_take": give_or_take,
        "totals": budget.totals(reports),
        "filters": [r for r in reports if r.filter is not None],
        "two_claims": [r for r in reports if r.budget_alone is not None],
        "not_private": [r.site for r in reports if not r.private],
        "stamped": not run.private or any(not r.private for r in reports),
        "simulated": [r.site for r in reports if r.simulated],
        "tampered": [site.report.site for site in sites if site.signature == "changed"],
        "weak_delta": [r.site for r in reports if r.delta >= 1 / r.declared_size],
        "trainable": _trainable(run.model.trainable),
        "shared": lambda field: _shared(reports, field),
        "assumptions": _assumptions(reports),
        "rules": RULES,
        "charts": charts(directory),
        "css_colours": css_colours,
        "thinned": len(rounds) > POINTS,
        "named_lines": NAMED_LINES,
        "any_missed": any(site.missed for site in sites),
    }


def _denoised(rounds: Sequence[Round]) -> tuple[float, float] | None:
    """Share of all matrices that were denoised, and that would have been by chance."""
    found = [row.denoised for row in rounds if row.denoised is not None]
    matrices = sum(row.matrices for row in found)
    if not matrices:
        return None
    on, chance = sum(row.on for row in found), math.fsum(row.by_chance for row in found)
    return on / matrices, chance / matrices


def _taken(rounds: Sequence[Round]) -> list[tuple[str, int]]:
    """The gate's moves, and in how many rounds it took each."""
    moves = (row.gate for row in rounds if row.gate is not None)
    names = (move.taken if move.records else f"{move.taken}, unseen" for move in moves)
    return Counter(names).most_common()


def _controlled(rounds: Sequence[Round]) -> dict[str, Any] | None:
    """Groups of a controller, how far their clip norms moved, and the shares that rounds used."""
    found = [row.controller for row in rounds if row.controller is not None]
    if not found:
        return None
    ends = zip(found[0].clip_norms, found[-1].clip_norms, strict=True)
    factors = [last / first for first, last in ends]
    shares = [one.share for one in found if one.share is not None]
    return {
        "groups": len(factors),
        "least": min(factors),
        "most": max(factors),
        "shares": (min(shares), max(shares)) if shares else None,
    }


def _evolved(rounds: Sequence[Round]) -> tuple[int, float, float] | None:
    """New synthetic records, the mean entropy of the selections, and their share of the time."""
    found = [row.synthetic for row in rounds if row.synthetic is not None]
    if not found:
        return None
    seconds = math.fsum(row.seconds for row in rounds)
    entropy = math.fsum(one.entropy for one in found) / len(found)
    spent = math.fsum(one.seconds for one in found)
    return sum(one.made for one in found), entropy, min(1.0, spent / seconds) if seconds else 0.0


def _site_view(report: BudgetReport, rounds: Sequence[Round]) -> SiteView:
    statuses = Counter(row.sites[report.site].status for row in rounds if report.site in row.sites)
    events = [e for e in report.events if e.job == report.job] or list(report.events)
    scale = max(report.budget, report.epsilon_committed) or 1.0
    return SiteView(
        report=report,
        rounds_ok=statuses.pop("ok", 0),
        missed=", ".join(f"{count} × {status}" for status, count in sorted(statuses.items())),
        steps=sum(event.count for event in report.events),
        sample_rate=_range(event.sample_rate for event in events),
        noise_multiplier=_range(event.noise_multiplier for event in events),
        spent_share=min(1.0, report.epsilon_spent / scale),
        allocated_share=report.epsilon_allocated / scale,
        signature=_signature(report),
        fingerprint=_fingerprint(report),
    )


def _signature(report: BudgetReport) -> str:
    if report.signature is None:
        return "unsigned"
    try:
        budget.verify(report)
    except LedgerCorruptError:
        return "changed"
    return "valid"


def _fingerprint(report: BudgetReport) -> str:
    """The first 16 bytes of SHA-256 of the public key, in groups a person can read aloud."""
    if report.signature is None:
        return ""
    digest = sha256(bytes.fromhex(report.signature.public_key)).hexdigest()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def _range(values: Iterable[float]) -> str:
    shown = [f"{value:.4g}" for value in sorted(set(values))]
    if not shown:
        return "–"
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} – {shown[-1]}"


def _scores(directory: RunDirectory) -> list[tuple[str, float | None, float | None]]:
    """(name, before, after) of what was measured on the held-out records."""
    before, after = directory.run.baseline, directory.last_evaluation
    accuracy = "Next-token accuracy" if directory.run.model.task == "causal-lm" else "Accuracy"
    names = {
        "eval_loss": "Held-out loss",
        "eval_accuracy": accuracy,
        "eval_auc": "AUC",
        "eval_hardest": "Loss on the hardest records",
    }
    rows = [(n, getattr(before, f, None), getattr(after, f, None)) for f, n in names.items()]
    return [row for row in rows if row[1] is not None or row[2] is not None]


def _trainable(trainable: Any) -> str:
    """A count of parameters, or of the named tensors, in words."""
    if isinstance(trainable, int):
        return f"{trainable:,} trainable parameters"
    if isinstance(trainable, (list, dict)):
        return f"{len(trainable):,} trainable tensors"
    return ""


def _shared(reports: Sequence[BudgetReport], field: str) -> list[tuple[Any, str]]:
    """The values of `field`, each with the sites it is true of; no sites if true of all."""
    groups: dict[Any, list[str]] = {}
    for report in reports:
        groups.setdefault(getattr(report, field), []).append(report.site)
    if len(groups) == 1:
        return [(value, "") for value in groups]
    most = max(groups, key=lambda value: len(groups[value]))
    others = "all others" if len(groups[most]) > MENTIONED else ", ".join(groups[most])
    return [(v, others if v == most else ", ".join(sites)) for v, sites in groups.items()]


def _assumptions(reports: Sequence[BudgetReport]) -> list[tuple[str, str]]:
    groups: dict[str, list[str]] = {}
    for report in reports:
        for assumption in report.assumptions:
            groups.setdefault(assumption, []).append(report.site)
    return [(a, "" if len(s) == len(reports) else ", ".join(s)) for a, s in groups.items()]
