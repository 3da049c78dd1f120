"""What the sites' budgets for life have left for later jobs, by their signed reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedpriv.report.budget import BudgetReport


@dataclass(frozen=True)
class LifeBudget:
    """One claim of one site, over all jobs that its ledger has paid for so far.

    Attributes:
        claim: which, where the site has two.
        left: of what the ledger's rule can ever let through, what no plan has taken.
        spent_share, allocated_share: of the budget, in [0, 1]; the first is part of the second.
    """

    report: BudgetReport
    claim: str
    spent: float
    allocated: float
    budget: float
    left: float
    spent_share: float
    allocated_share: float


def life_budgets(reports: Sequence[BudgetReport]) -> list[LifeBudget]:
    """A line for every claim of every report."""
    return [one for report in reports for one in _of(report)]


def _of(report: BudgetReport) -> Iterator[LifeBudget]:
    alone = report.budget_alone is not None
    yield _line(
        report,
        "with trust" if alone else "",
        report.epsilon_spent,
        report.epsilon_allocated,
        report.epsilon_committed,
        report.budget,
    )
    if (
        report.budget_alone is not None
        and report.epsilon_alone_spent is not None
        and report.epsilon_alone_allocated is not None
        and report.epsilon_alone_committed is not None
    ):
        yield _line(
            report,
            "alone",
            report.epsilon_alone_spent,
            report.epsilon_alone_allocated,
            report.epsilon_alone_committed,
            report.budget_alone,
        )


def _line(
    report: BudgetReport,
    claim: str,
    spent: float,
    allocated: float,
    committed: float,
    budget: float,
) -> LifeBudget:
    scale = max(budget, committed, allocated) or 1.0
    return LifeBudget(
        report=report,
        claim=claim,
        spent=spent,
        allocated=allocated,
        budget=budget,
        left=max(0.0, committed - allocated),
        spent_share=min(spent, allocated) / scale,
        allocated_share=allocated / scale,
    )
