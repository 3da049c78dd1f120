"""What one site says in a dossier, and how its figures are compared with computed ones."""

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
from fedpriv.report.budget import BudgetReport, figure_names
from fedpriv.report.figures import upper

DIGITS = 1e-6  # share of a figure by which the same events may differ from machine to machine
SECOND, LEAST = 0.01, 1e-3  # by how much one upper bound may exceed another: a share, or this ε


@dataclass(frozen=True)
class Statement:
    """What a dossier holds about one site.

    Attributes:
        path: the dossier's path, for messages.
        rows: the rows of its ledger; None if they are not in the dossier.
        key: the public key that must have signed the report, in hex; None accepts any.
        third: returns another accountant's upper bound of a term; None if none is asked.
    """

    path: Path
    facts: Facts
    site: Participant
    report: BudgetReport
    rows: list[Row] | None
    key: str | None = None
    third: Callable[[Term], float] | None = None

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def whose(self) -> str:
        """The beginning of a message."""
        return f"{self.path}: the budget report of site {self.name!r}"

    def check_answered(self, slots: int) -> None:
        """Check that a site paid for at least the steps for which the coordinator had replies."""
        proposal = self.facts.proposal
        looks = 0 if proposal.evaluation is None else self.site.looks * proposal.evaluation.slots
        answered = self.site.rounds * proposal.round_steps + looks
        if slots < answered:
            raise UnderstatedError(
                f"{self.whose} counts {slots} steps of job {self.facts.job!r}, and the coordinator"
                f" had replies of {answered}: events are missing. The report may be an older one;"
                " ask the site for its newest."
            )

    def check_stated(self, name: str, least: float, why: str, slack: float = DIGITS) -> None:
        stated = getattr(self.report, name)
        enough = least - max(slack * least, LEAST * (slack > DIGITS))
        if stated is None or not stated >= enough:  # for an infinite ε, `enough` is NaN
            raise UnderstatedError(
                f"{self.whose} states {name} = {stated}, and {why} {least:.6g} at δ ="
                f" {self.report.delta:g}. Don't rely on it."
            )

    def asked_again(self, figures: list[Figure]) -> Iterator[Finding]:
        """Compute the same figures with another accountant, and yield the findings."""
        if self.third is None:
            yield left_open("dp-accounting was not asked")
            return
        shown = []
        for figure in figures:
            try:
                value = figure.value(self.third)
            except AccountingError as error:
                yield left_open(f"dp-accounting was not asked of {figure.name}: {error}")
                continue
            self.check_stated(figure.name, value, "dp-accounting comes to", SECOND)
            if figure.terms:
                shown.append(f"{figure.called} {value:.4g}")
        if shown:
            yield holds(f"dp-accounting agrees: {', '.join(shown)}")

    def figures_in_words(self) -> str:
        """Say in words what the report states."""
        first, *alone = (
            f"spent {upper(claim.spent)}, allocated {upper(claim.allocated)}, committed"
            f" {upper(claim.committed)} of {upper(claim.budget)}"
            for claim in received.claims_of(self.report)
        )
        return "; alone, ".join([f"ε {first} at δ = {self.report.delta:g}", *alone])

    def check_order(self) -> None:
        """Check that spent is at most allocated, that at most committed, and that at most budget.

        Raises:
            UnderstatedError: that is not so.
        """
        for claim in received.claims_of(self.report):
            stated, names = list(claim[1:4]), ", ".join(figure_names(claim.alone))
            if sorted(stated) != stated or stated[-1] > claim.budget * (1 + DIGITS):
                raise UnderstatedError(
                    f"{self.whose} states {', '.join(map(str, stated))} for {names}, and a budget"
                    f" of {claim.budget}: each has to be within the next."
                )


def check_signed(report: BudgetReport, path: Path) -> None:
    """Check that a report in a dossier was not changed after it was signed.

    Raises:
        AlteredError: it was changed, or is not signed.
    """
    try:
        received.verify(report)
    except LedgerCorruptError as error:
        raise AlteredError(f"{path}: {error}") from None


def signer_of(report: BudgetReport) -> str | None:
    """Return the key that a report says signed it, in hex. `check_signed` checks it."""
    return None if report.signature is None else report.signature.public_key
