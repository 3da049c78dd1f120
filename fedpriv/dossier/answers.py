"""``answers.json``: what is claimed, in plain words, and how that answers clauses of other texts.

It is made from the other files alone, so that anybody who has them can make it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from pydantic import Field

from fedpriv.dossier.clauses import Clause, clauses_of
from fedpriv.dossier.facts import Contents, json_of
from fedpriv.dossier.sentences import basis_of
from fedpriv.report.alike import grouped
from fedpriv.report.budget import BudgetReport
from fedpriv.report.received import claims_of
from fedpriv.section import Section

NEIGHBOURS = (
    "Whatever {outsiders} conclude from all that the site sends under its ledger, they would have"
    " concluded almost as readily had one {unit} never been there: no conclusion becomes more than"
    " exp(ε) times as likely, nor less, apart from a slack of δ."
)
LOCAL = (
    "The site adds all of its noise itself, so this needs no trust in the coordinator or in any"
    " other site."
)
TRUSTING = (
    "The noise is that of all sites of a sum together. This holds if at most {least} of them work"
    " with the coordinator, or leave out their part of the noise."
)
ALONE = (
    "The same whatever every other site does: only the site's own part of the noise counts, so ε is"
    " larger. This needs no trust in anybody else."
)


ClaimName = Literal["local", "secure sum", "alone"]


class Claimed(Section):
    """The ε of a claim at one site, for the life of its ledger."""

    site: str
    epsilon: float
    budget: float
    delta: float
    unit: str
    covers: str = Field(description="what the figure is about, under the ledger's rule")


class Claim(Section):
    """One claim: the sites that make it, and what it rests on.

    Attributes:
        name: ``local`` where a site adds all of its noise; ``secure sum`` and ``alone`` where
            sites add it together.
        assumptions: assumptions not in the text, each with the sites that name it; no sites if
            all do.
    """

    name: ClaimName
    text: str
    sites: tuple[Claimed, ...]
    assumptions: tuple[tuple[str, tuple[str, ...]], ...]


class Answers(Section):
    """The content of ``answers.json``."""

    claims: tuple[Claim, ...]
    clauses: tuple[Clause, ...]


def answers(contents: Contents) -> Answers:
    """Return what a dossier claims, and how it answers the clauses of other texts."""
    reports = list(contents.reports.values())
    return Answers(claims=tuple(_claims(reports)), clauses=tuple(clauses_of(contents)))


def answers_of(contents: Contents) -> bytes:
    """Return the bytes of ``answers.json``."""
    return json_of(answers(contents))


def _claims(reports: list[BudgetReport]) -> Iterator[Claim]:
    local = [report for report in reports if report.budget_alone is None]
    shared = [report for report in reports if report.budget_alone is not None]
    units = sorted({_unit(report) for report in reports})
    if local:
        yield _claim("local", local, f"{_words('all others together', units)} {LOCAL}")
    if shared:
        known = [one.max_colluding for one in shared if one.max_colluding is not None]
        trust = TRUSTING.format(least=min(known)) if known else f"No secure sum so far. {LOCAL}"
        yield _claim("secure sum", shared, f"{_words('others', units)} {trust}")
        yield _claim("alone", shared, ALONE)


def _unit(report: BudgetReport) -> str:
    return "record" if report.unit == "record" else f"value of {report.unit} with all its records"


def _words(outsiders: str, units: list[str]) -> str:
    return NEIGHBOURS.format(outsiders=outsiders, unit=", or one ".join(units))


def _claim(name: ClaimName, reports: list[BudgetReport], text: str) -> Claim:
    stated = [(one, claims_of(one)[-1 if name == "alone" else 0]) for one in reports]
    return Claim(
        name=name,
        text=text,
        sites=tuple(
            Claimed(
                site=one.site,
                epsilon=claim.committed,
                budget=claim.budget,
                delta=one.delta,
                unit=one.unit,
                covers=_shown(one, "guarantee", one.guarantee),
            )
            for one, claim in stated
        ),
        assumptions=tuple(assumptions_of(reports)),
    )


def _shown(report: BudgetReport, field: str, text: str) -> str:
    """Return a sentence of a report. Mark it if this fedpriv does not derive it from its values."""
    odd = basis_of(report)[1]
    return f"(in words of another version, not derived) {text}" if field in odd else text


def assumptions_of(reports: Collection[BudgetReport]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each assumption with the sites that make it; no sites if all of them do."""
    named = grouped((text, report.site) for report in reports for text in _assumed(report))
    for text, sites in named.items():
        yield text, () if len(sites) == len(reports) else tuple(sites)


def _assumed(report: BudgetReport) -> Iterator[str]:
    for text in report.assumptions:
        yield _shown(report, "assumptions", text)
    yield f"Timing: {_shown(report, 'timing', report.timing)}"
    yield f"Numerics: {_shown(report, 'numerics', report.numerics)}"
