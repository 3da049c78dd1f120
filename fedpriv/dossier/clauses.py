"""How a dossier answers clauses of other texts: row by row, what is computed and what is said.

The texts are paraphrased, not quoted. Only clauses that a dossier says something about are here.
It answers none of them in full: people who keep a trusted research environment, or are responsible
under the GDPR, have to do more than a computation can show.

Source:
    SATRE, Standard Architecture for Trusted Research Environments, specification 2.0.1 (2026), its
    numbers and degrees of importance; Regulation (EU) 2016/679 (GDPR); NIST SP 800-226, "Guidelines
    for Evaluating Differential Privacy Guarantees" (2025), by subject, as it numbers no demands.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from fedpriv.dossier.facts import AUDIT, Contents
from fedpriv.report.figures import upper
from fedpriv.report.received import claims_of
from fedpriv.section import Section

TABLE = Path(__file__).parent / "clauses.toml"
LEDGERS = "sites/*/ledger.json"
AUDITED = "What attacks achieved against this run is here, as a lower bound on ε beside the upper."


class Clause(Section):
    """A row of the table.

    Attributes:
        asks: the demand, in our own words.
        computed: what holds by computation from this file; empty if nothing does.
        word: what rests only on somebody's word; empty if nothing does.
        shown_in: the files of the dossier that show it.
    """

    text: str
    clause: str
    asks: str
    computed: str = ""
    word: str = ""
    shown_in: tuple[str, ...] = Field(min_length=1)


def clauses_of(contents: Contents) -> Iterator[Clause]:
    """Yield all rows of the table, in the order of the texts."""
    absent = {*(() if contents.rows else (LEDGERS,)), *(() if contents.audit else (AUDIT,))}
    words = _words(contents)
    for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["clause"]:
        said = {key: row.get(key, "").format_map(words).strip() for key in ("computed", "word")}
        shown_in = tuple(name for name in row["shown_in"] if name not in absent)
        yield Clause.model_validate({**row, **said, "shown_in": shown_in})


def _words(contents: Contents) -> dict[str, str]:
    """Return name in the table → the text to fill in there."""
    audited = contents.audit is not None
    return {
        "bound": _bound(contents),
        "basis": _basis(contents),
        "files": f"{len(contents.facts.adapter)}",
        "unit": _unit(contents),
        "largest": _largest(contents),
        "looks": _looks(contents),
        "order": (
            "The budget was fixed before the first step, and every step paid for before it was"
            " released: the order and the hashes of the ledger's rows."
            if contents.rows
            else "The events of each report cost no more than it states."
        ),
        "audited": AUDITED if audited else "No audit of this run is here.",
        "tested": AUDITED if audited else "",
        "untested": (
            "That the audit ran with this code and these settings, and is repeated regularly."
            if audited
            else "This run was not audited. That measures are tested in another way, and regularly."
        ),
    }


def _bound(contents: Contents) -> str:
    """Say what the rows of ledgers show about the proposal."""
    if not contents.rows:
        return ""
    of = "each site" if len(contents.rows) == len(contents.reports) else ", ".join(contents.rows)
    return f" The ledger of {of} committed to the proposal, by its digest, before the first step."


def _basis(contents: Contents) -> str:
    """Say from what ε was computed."""
    if len(contents.rows) == len(contents.reports):
        return "the rows of each ledger"
    if not contents.rows:
        return "the events in each report"
    return "the rows of each ledger that is here, and else the events in the report"


def _unit(contents: Contents) -> str:
    units = sorted({report.unit for report in contents.reports.values()})
    return " or ".join("record" if unit == "record" else f"value of {unit}" for unit in units)


def _largest(contents: Contents) -> str:
    """Say the largest ε of each claim."""
    reports = contents.reports.values()
    if not reports:
        return "no site has reported"
    text = f"ε of at most {upper(max(report.epsilon_committed for report in reports))}"
    alone = [claim.committed for report in reports for claim in claims_of(report)[1:]]
    return f"{text}, and alone {upper(max(alone))}" if alone else text


def _looks(contents: Contents) -> str:
    steps = contents.facts.evaluation.steps
    if not steps:
        return "No step of the plan was for a score: what scores cost in ε is nothing."
    return (
        f"Scores on the sites' own records took {steps} of {contents.facts.proposal.steps} steps,"
        " which are in ε."
    )
