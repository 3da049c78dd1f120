"""``dossier.html``: a dossier as a page for people, which needs no other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpriv.dossier.answers import answers, assumptions_of
from fedpriv.dossier.facts import Contents, ledger_file
from fedpriv.privacy.ledger.ledger import read_history
from fedpriv.report import received
from fedpriv.report.lifetime import in_words
from fedpriv.report.page_parts import RULES, css_colours, score_rows, templates


def page_of(contents: Contents, verdict: str = "") -> bytes:
    """Make the page of a dossier from its other files alone.

    Args:
        verdict: the verdict of a check; empty for the page in the dossier itself.
    """
    template = templates("fedpriv.dossier").get_template("dossier.html.j2")
    return (template.render(_context(contents), verdict=verdict) + "\n").encode()


def _context(contents: Contents) -> dict[str, Any]:
    facts, reports = contents.facts, contents.reports
    scores = facts.evaluation.scores
    made = answers(contents)
    return {
        "facts": facts,
        "proposal": facts.proposal,
        "reports": reports,
        "rows": {name: len(rows) for name, rows in contents.rows.items()},
        "silent": [site.name for site in facts.sites if not site.report and site.rounds],
        "approvals": {
            name: read_history(rows, Path(ledger_file(name))).approvals.get(facts.job, [])
            for name, rows in contents.rows.items()
            if any(row.kind == "approved" for row in rows)
        },
        "simulated": [name for name, report in reports.items() if report.simulated],
        "claims": made.claims,
        "assumptions": list(assumptions_of(reports.values())),
        "clauses": made.clauses,
        "totals": received.totals(reports.values()),
        "scores": score_rows(facts.task, scores[0], scores[-1], prefix="") if scores else [],
        "last": scores[-1] if scores else None,
        "audit": contents.audit,
        "rules": RULES,
        "css_colours": css_colours,
        "in_words": in_words,
    }
