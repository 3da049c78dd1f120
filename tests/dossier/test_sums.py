"""What a figure is made of comes to what the ledger says, whatever was done with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.dossier.sums import Term, epsilon_of, figures_of
from fedpriv.dossier.third import third_accountant
from fedpriv.errors import AccountingError, BudgetError
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule
from fedpriv.privacy.ledger.terms import Terms
from tests.example_counts import examples

RULES: list[Rule] = [PlanRule(), RdpRule(8, 4), SumRule(1e-6)]
DIGEST = "sha256:" + "a" * 64
plans = st.lists(
    st.tuples(
        st.sampled_from(["local", "shared"]),
        st.integers(1, 5),  # steps
        st.integers(0, 5),  # reserved
        st.booleans(),  # closed
    ),
    max_size=4,
)


def history_of(rule: Rule, made: list[tuple[str, int, int, bool]]) -> History:
    """What rows would lead to in which these plans were accepted, as far as they are."""
    terms = Terms("d", 200, "record", 1, 1e-5, 50.0, True, rule=rule, budget_alone=100.0)
    history = History("terms", terms.as_row())
    for number, (kind, steps, reserved, closed) in enumerate(made):
        plan = Plan(
            job=f"job-{number}",
            method="dp-lora",
            sample_rate=0.1,
            noise_multiplier=2.0 + number,
            clip_norm=1.0,
            steps=steps,
            proposal=DIGEST,
            max_colluding=1 if kind == "shared" else None,
            shares=3 if kind == "shared" else 1,
        )
        try:
            history.allocated_with(plan)
        except BudgetError:
            continue
        history.take("plan", plan.as_row())
        for slot in range(min(reserved, steps)):
            history.take("reserve", {"job": plan.job, "slot": slot, "request": DIGEST})
        if closed:
            history.take("close", {"job": plan.job})
    return history


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@settings(max_examples=examples(60), deadline=None)
@given(made=plans)
def test_the_terms_of_a_figure_come_to_what_the_ledger_says(
    rule: Rule, made: list[tuple[str, int, int, bool]]
) -> None:
    history = history_of(rule, made)
    figures = figures_of(history)
    assert len(figures) == 3 * len(history.terms.claims)
    for figure in figures:
        found = getattr(history, figure.name)
        assert figure.value(epsilon_of) == pytest.approx(found, rel=1e-9), figure


@pytest.mark.parametrize(
    ("delta", "events"),
    [
        (1e-5, [Event(0.2, 0.9446, 4)]),
        (1e-5, [Event(0.01, 1.0, 1000)]),
        (1e-7, [Event(0.05, 3.0, 100_000)]),
        (1e-5, [Event(0.2, 20.0, 5)]),
        (1e-10, [Event(0.01, 1.0, 20_000), Event(0.3, 5.0, 100)]),
        (1e-5, [Event(1.0, 0.05, 5)]),
    ],
)
def test_the_other_accountant_says_nearly_the_same(delta: float, events: list[Event]) -> None:
    third = third_accountant()
    assert third is not None
    term = Term(delta, tuple(events))
    assert third(term) == pytest.approx(epsilon_of(term), rel=3e-3)
    less = [replace(event, noise_multiplier=0.9 * event.noise_multiplier) for event in events]
    assert third(Term(delta, tuple(less))) > 1.02 * epsilon_of(term)


@pytest.mark.parametrize("order", [2, 8, 64])
def test_the_other_accountant_adds_up_at_the_order_that_was_fixed(order: int) -> None:
    third = third_accountant()
    assert third is not None
    term = Term(1e-5, (Event(0.2, 2.0, 30), Event(0.1, 3.0, 5)), order)
    assert third(term) == pytest.approx(epsilon_of(term), rel=1e-9)


@pytest.mark.parametrize(
    "events",
    [
        (Event(0.5, 0.01, 10**6),),  # an ε that promises nothing
        (Event(1.0, 0.0, 1),),  # none at all
        (Event(1.0, 20.0, 1), Event(1e-9, 1e-3, 5)),  # so fine a grid for so large losses
    ],
)
def test_what_a_grid_has_no_room_for_is_not_asked(events: tuple[Event, ...]) -> None:
    third = third_accountant()
    assert third is not None
    with pytest.raises(AccountingError, match="too many points"):
        third(Term(1e-5, events))


def test_where_its_grids_leave_out_more_than_delta_the_other_accountant_says_nothing() -> None:
    third = third_accountant()
    assert third is not None
    with pytest.raises(AccountingError, match="leave out more than δ"):
        third(Term(1e-18, (Event(0.1, 2.0, 6),)))


def test_an_epsilon_of_nought_is_asked_too() -> None:
    third = third_accountant()
    assert third is not None
    term = Term(1e-5, (Event(1e-8, 1.0, 10),))
    assert epsilon_of(term) == 0
    assert third(term) < 1e-3


def test_without_steps_there_is_nothing_to_compute() -> None:
    assert epsilon_of(Term(1e-5, ())) == 0
    assert epsilon_of(Term(1e-5, (), 8)) == 0
