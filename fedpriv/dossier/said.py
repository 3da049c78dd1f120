"""What one site says in a dossier, and how its figures are compared with what was computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedpriv.dossier.facts import Facts, Participant
from fedpriv.dossier.findings import Finding, holds, left_open
from fedpriv.dossier.sums import Figure, Term
from fedpriv.errors import AccountingError, AlteredError, LedgerCorruptError, UnderstatedError
from fedpriv.privacy.ledger.chain import Row
from fedpriv.report import received
from fedpriv.report.budget import BudgetReport
from fedpriv.report.figures import upper

DIGITS = 1e-6  # share of a figure by which the same events may differ from machine to machine
SECOND, LEAST = 0.01, 1e-3  # what one upper bound may be above another: a share, or this much


@dataclass(frozen=True)
class Said:
    """What a dossier has of one site.

    Attributes:
        path: of the dossier, for messages.
        rows: of its ledger; None where they are not in the dossier.
        key: public key that has to have signed the report, in hex; None takes any.
    """

    path: Path
    facts: Facts
    site: Participant
    report: BudgetReport
    rows: list[Row] | None
    key: str | None = None

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def whose(self) -> str:
        """Beginning of a message."""
        return f"{self.path}: the budget report of site {self.name!r}"


def check_signed(report: BudgetReport, path: Path) -> None:
    """Check that a report in a dossier is as somebody signed it.

    Raises:
        AlteredError: it is not.
    """
    try:
        received.verify(report)
    except LedgerCorruptError as error:
        raise AlteredError(f"{path}: {error}") from None


def check_answered(said: Said, slots: int) -> None:
    """Check that a site paid for at least the steps that the coordinator had replies for."""
    proposal = said.facts.proposal
    looks = 0 if proposal.evaluation is None else said.site.looks * proposal.evaluation.slots
    answered = said.site.rounds * proposal.round_steps + looks
    if slots < answered:
        raise UnderstatedError(
            f"{said.whose} counts {slots} steps of job {said.facts.job!r}, and the coordinator had"
            f" replies of {answered}: events are missing. The report may be an older one; ask the"
            " site for its newest."
        )


def check_stated(said: Said, name: str, least: float, why: str, slack: float = DIGITS) -> None:
    stated = getattr(said.report, name)
    enough = least - max(slack * least, LEAST * (slack > DIGITS))
    if stated is None or not stated >= enough:  # of an infinite ε, `enough` is no number
        raise UnderstatedError(
            f"{said.whose} states {name} = {stated}, and {why} {least:.6g} at δ ="
            f" {said.report.delta:g}. Don't rely on it."
        )


def asked_twice(
    said: Said, figures: list[Figure], second: Callable[[Term], float] | None
) -> Iterator[Finding]:
    """The same figures by another accountant."""
    if second is None:
        yield left_open("dp-accounting was not asked", said.name)
        return
    shown = []
    for figure in figures:
        try:
            value = figure.value(second)
        except AccountingError as error:
            yield left_open(f"dp-accounting was not asked of {figure.name}: {error}", said.name)
            continue
        check_stated(said, figure.name, value, "dp-accounting comes to", SECOND)
        if figure.terms:
            shown.append(f"{figure.name.removeprefix('epsilon_').replace('_', ' ')} {value:.4g}")
    if shown:
        yield holds(f"dp-accounting agrees: {', '.join(shown)}", said.name)


def figures_in_words(report: BudgetReport) -> str:
    """What a report states, in words."""
    text = (
        f"ε spent {upper(report.epsilon_spent)}, allocated {upper(report.epsilon_allocated)},"
        f" committed {upper(report.epsilon_committed)} of {upper(report.budget)} at δ ="
        f" {report.delta:g}"
    )
    spent, allocated = report.epsilon_alone_spent, report.epsilon_alone_allocated
    committed, limit = report.epsilon_alone_committed, report.budget_alone
    if spent is None or allocated is None or committed is None or limit is None:
        return text
    return (
        f"{text}; alone, spent {upper(spent)}, allocated {upper(allocated)}, committed"
        f" {upper(committed)} of {upper(limit)}"
    )
