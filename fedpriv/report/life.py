"""What is left of the sites' budgets for life, by their signed reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.report.budget import BudgetReport
from fedpriv.report.received import StatedClaim, claims_of


@dataclass(frozen=True)
class LifeBudget:
    """One claim of one site, over all jobs that its ledger has paid for so far.

    Attributes:
        stated: the claim's figures.
        claim: the claim's name, if the site has two.
        left: what the ledger's rule can still allow and no plan has taken.
        spent_share, allocated_share: shares of the budget, in [0, 1]; the second includes the
            first.
    """

    report: BudgetReport
    stated: StatedClaim
    claim: str
    left: float
    spent_share: float
    allocated_share: float


def life_budgets(reports: Sequence[BudgetReport]) -> list[LifeBudget]:
    """Return a line for every claim of every report."""
    return [_line(report, claim) for report in reports for claim in claims_of(report)]


def _line(report: BudgetReport, claim: StatedClaim) -> LifeBudget:
    scale = max(claim.budget, claim.committed, claim.allocated) or 1.0
    taken = claim.allocated / scale
    if report.life is not None and report.budget_alone is None:  # else it may be for another claim
        taken = min(1.0, report.life.taken)
    spent = min(claim.spent, claim.allocated) / (claim.allocated or 1.0)
    trusting = "with trust" if report.budget_alone is not None else ""
    return LifeBudget(
        report=report,
        stated=claim,
        claim="alone" if claim.alone else trusting,
        left=max(0.0, claim.committed - claim.allocated),
        spent_share=spent * taken,
        allocated_share=taken,
    )
