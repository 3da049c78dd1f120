"""Budgets for life: nothing is shown as left that the ledger's rule would not let through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpriv.report.budget import BudgetReport
from fedpriv.report.life import life_budgets

SIZES = st.floats(0, 50)


def report(
    rule: str, spent: float, allocated: float, committed: float, budget: float
) -> BudgetReport:
    return BudgetReport(
        site="site",
        dataset_id="0" * 32,
        unit="record",
        max_records_per_unit=1,
        delta=1e-5,
        declared_size=100,
        rule=rule,  # type: ignore[arg-type]
        accountant="PRV",
        private=True,
        simulated=False,
        guarantee="all",
        epsilon_spent=spent,
        epsilon_allocated=allocated,
        epsilon_committed=committed,
        budget=budget,
        epsilon_alone_spent=spent,
        epsilon_alone_allocated=allocated,
        epsilon_alone_committed=committed,
        budget_alone=budget,
        ledger_head="0" * 64,
        ledger_rows=1,
        job="job",
    )


@given(SIZES, SIZES, SIZES, SIZES)
def test_bars_stay_within_the_budget_and_what_is_left_within_the_claim(
    spent: float, allocated: float, committed: float, budget: float
) -> None:
    trust, alone = life_budgets([report("rdp", spent, allocated, committed, budget)])
    assert (trust.claim, alone.claim) == ("with trust", "alone")
    for line in (trust, alone):
        assert 0 <= line.spent_share <= line.allocated_share <= 1
        assert line.left == max(0.0, committed - allocated)


def test_after_its_one_plan_nothing_is_left_and_of_a_filter_the_rest() -> None:
    assert life_budgets([report("plan", 1.0, 3.9, 3.9, 4.0)])[0].left == 0
    assert life_budgets([report("rdp", 1.0, 3.5, 12.0, 12.0)])[0].left == 8.5


def test_a_ledger_with_one_budget_has_one_line() -> None:
    found = report("rdp", 1.0, 3.5, 12.0, 12.0)
    none = dict.fromkeys(key for key in BudgetReport.model_fields if "alone" in key)
    [line] = life_budgets([found.model_copy(update=none)])
    assert line.claim == ""
