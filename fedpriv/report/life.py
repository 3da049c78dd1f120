"""What the sites' budgets for life have left for later jobs, by their signed reports."""

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
        left: the part of all that the ledger's rule can allow that no plan has taken.
        spent_share, allocated_share: shares of the budget, in [0, 1]; the first is in the second.
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
    if report.life is not None and report.budget_alone is None:  # else it may be of the other claim
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
