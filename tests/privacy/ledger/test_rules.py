"""How plans add up under each rule, and that no history of them gets past its claim."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import BudgetError, LedgerError, SlotError
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.accounting.rdp import ORDERS, epsilon_from_rdp, rdp
from fedpriv.privacy.ledger import administration
from fedpriv.privacy.ledger.chain import Chain
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Terms
from fedpriv.privacy.ledger.rules import (
    PlanRule,
    RdpRule,
    Rule,
    SumRule,
)
from tests.example_counts import examples

DELTA, BUDGET = 1e-5, 4.0
PLAN = Plan("job-1", "dp-lora", 0.1, 1.5, 1.0, 8, "sha256:" + "c" * 64)
DIGEST = "sha256:" + "a" * 64
RULES = [PlanRule(), RdpRule.best(BUDGET, DELTA), SumRule(DELTA / 4)]


def terms(rule: Rule, budget: float = BUDGET) -> Terms:
    return Terms("0" * 32, 200, "record", 1, DELTA, budget, simulated=True, rule=rule)


def ledger(path: Path, rule: Rule, budget: float = BUDGET) -> Ledger:
    return Ledger.create(path / "ledger.db", terms(rule, budget))


def test_plan_claims_its_plan_and_gives_nothing_back(tmp_path: Path) -> None:
    with ledger(tmp_path, PlanRule()) as opened:
        assert (opened.epsilon_committed, opened.epsilon_allocated) == (BUDGET, 0)
        opened.commit(replace(PLAN, job="unused"))
        administration.close_job(opened, "unused")  # another may have its place
        assert (opened.epsilon_committed, opened.is_full) == (BUDGET, False)
        opened.commit(PLAN)
        assert opened.is_full
        opened.reserve("job-1", 0, DIGEST)
        whole = epsilon_upper([PLAN.event()], DELTA)
        assert opened.epsilon_committed == whole == administration.close_job(opened, "job-1")
        with pytest.raises(BudgetError, match="one plan for life"):
            opened.commit(replace(PLAN, job="job-2"))


def test_an_older_ledger_of_an_envelope_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    rule = {"name": "envelope", "sample_rate": 0.1, "noise_multiplier": 1.5, "slots": 40}
    Chain.create(path, "terms", {**terms(PlanRule()).as_row(), "rule": rule}).close()
    before = path.read_bytes()
    for reading in (True, False):
        with pytest.raises(LedgerError, match=r"'envelope', which no version after fedpriv 0\.2"):
            Ledger.open(path, reading=reading)
    assert path.read_bytes() == before


def test_a_filter_is_debited_at_its_one_order(tmp_path: Path) -> None:
    rule = RdpRule(8)
    with ledger(tmp_path, rule) as opened:
        assert opened.epsilon_committed == BUDGET
        curve = rdp(0.1, 1.5, (8,)) * 8
        assert opened.commit(PLAN) == pytest.approx(epsilon_from_rdp(curve, DELTA, (8,))[0])
        most = int(opened.history.limit[0] / float(curve[0]))
        for number in range(2, most + 1):
            opened.commit(replace(PLAN, job=f"job-{number}"))
        assert opened.epsilon_allocated <= BUDGET
        with pytest.raises(BudgetError, match="under the rule 'rdp'"):
            opened.commit(replace(PLAN, job="one-more"))
        opened.reserve("job-1", 0, DIGEST)
        before = opened.epsilon_allocated
        assert administration.close_job(opened, "job-1") < before
        opened.commit(replace(PLAN, job="one-more", steps=7))


def test_a_whole_filter_is_the_budget() -> None:
    for rule in (RdpRule(2), RdpRule(8), RdpRule(64), RdpRule.best(BUDGET, DELTA)):
        if rule.order == 2:
            with pytest.raises(LedgerError, match="higher order"):
                terms(rule)
            continue
        limit = rule.limit(BUDGET, DELTA)
        spent = rule.allocated(limit, DELTA)
        assert spent == pytest.approx(BUDGET, rel=1e-9) and spent <= BUDGET


def test_the_best_order_buys_most() -> None:
    """Steps of a plan that fit, against every other order."""
    for budget in (1.0, 4.0, 10.0):
        best = RdpRule.best(budget, DELTA)

        def steps(order: int, budget: float = budget) -> float:
            try:
                limit = RdpRule(order).limit(budget, DELTA)[0]
            except LedgerError:
                return 0.0
            return limit / float(rdp(0.05, 3.0, (order,))[0])

        assert steps(best.order) >= 0.9 * max(steps(order) for order in range(2, 100))


def test_a_filter_is_dearer_than_a_plan_but_not_by_much() -> None:
    plan = PLAN.event(400)
    curve = rdp(plan.sample_rate, plan.noise_multiplier)
    numerical = epsilon_upper([plan], DELTA)
    filtered = epsilon_from_rdp(curve * 400, DELTA)[0]
    assert numerical < filtered < 1.25 * numerical


@settings(max_examples=examples(15), deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    plans=st.lists(
        st.tuples(st.floats(0.01, 1), st.floats(0.5, 5), st.integers(1, 100)),
        min_size=1,
        max_size=5,
    ),
)
def test_a_filter_of_any_plans_costs_no_less_than_the_accountant_says(
    order: int, plans: list[tuple[float, float, int]]
) -> None:
    used, events = 0.0, []
    for q, sigma, steps in plans:
        plan = replace(PLAN, sample_rate=q, noise_multiplier=sigma, steps=steps)
        used += RdpRule(order).cost(plan, steps, DELTA)[0]
        events.append(plan.event())
    assert epsilon_upper(events, DELTA) <= RdpRule(order).allocated((used,), DELTA)


@given(order=st.sampled_from(ORDERS), sigma=st.floats(0.5, 5), parts=st.lists(st.integers(1, 500)))
def test_rounding_never_makes_a_filter_cheaper(order: int, sigma: float, parts: list[int]) -> None:
    rule, plan = RdpRule(order), replace(PLAN, noise_multiplier=sigma)
    step = Fraction(float(rdp(plan.sample_rate, sigma, (order,))[0]))
    taken = sum(Fraction(rule.cost(plan, steps, DELTA)[0]) for steps in parts)
    assert taken >= step * sum(parts)


def test_sums_add_up_epsilon_and_delta(tmp_path: Path) -> None:
    with ledger(tmp_path, SumRule(DELTA / 4), budget=8.0) as opened:
        assert opened.terms.plan_delta == DELTA / 4
        one = epsilon_upper([PLAN.event()], DELTA / 4)
        for number in range(1, 5):
            assert opened.commit(replace(PLAN, job=f"job-{number}")) == pytest.approx(number * one)
        with pytest.raises(BudgetError, match="under the rule 'sum'"):  # δ is used up
            opened.commit(replace(PLAN, job="job-5", steps=1))
        opened.reserve("job-1", 0, DIGEST)
        assert administration.close_job(opened, "job-1") == pytest.approx(4 * one)
        assert opened.epsilon_committed == 8.0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_an_untouched_plan_gives_all_back(tmp_path: Path, rule: Rule) -> None:
    """No slot of it was reserved, so nothing was released for it."""
    with ledger(tmp_path, rule) as opened:
        opened.commit(PLAN)
        assert administration.close_job(opened, "job-1") == 0
        opened.commit(replace(PLAN, job="job-2"))
        with pytest.raises(SlotError, match="closed"):
            opened.reserve("job-1", 0, DIGEST)
        with pytest.raises(BudgetError):
            opened.commit(PLAN)
        with pytest.raises(SlotError, match=r"no open plan.*job-2"):
            administration.close_job(opened, "job-1")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_closed_job_still_answers_what_it_released(tmp_path: Path, rule: Rule) -> None:
    with ledger(tmp_path, rule) as opened:
        opened.commit(PLAN)
        reservation = opened.reserve("job-1", 0, DIGEST)
        assert not isinstance(reservation, bytes)
        opened.release(reservation, b"x")
        opened.reserve("job-1", 1, DIGEST)
        administration.close_job(opened, "job-1")
        assert opened.reserve("job-1", 0, DIGEST) == b"x"
        with pytest.raises(SlotError, match="closed"):
            opened.reserve("job-1", 1, DIGEST)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@settings(max_examples=examples(15), deadline=None)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["commit", "reserve", "close", "reopen"]),
            st.integers(0, 4),
            st.integers(1, 12),
            st.floats(1.5, 4),
        ),
        max_size=25,
    )
)
def test_no_history_gets_past_the_claim(
    tmp_path_factory: pytest.TempPathFactory,
    rule: Rule,
    actions: list[tuple[str, int, int, float]],
) -> None:
    """Whoever picks plans, slots and closures, and whenever."""
    path = tmp_path_factory.mktemp("ledger")
    opened = ledger(path, rule)
    charged = 0.0
    try:
        for kind, number, amount, noise in actions:
            job = f"job-{number}"
            try:
                if kind == "commit":
                    opened.commit(replace(PLAN, job=job, steps=amount, noise_multiplier=noise))
                elif kind == "reserve":
                    opened.reserve(job, amount - 1, DIGEST)
                elif kind == "close":
                    administration.close_job(opened, job)
                else:
                    figures = opened.figures()
                    opened.close()
                    opened = Ledger.open(path / "ledger.db")
                    assert opened.figures() == figures
            except (BudgetError, SlotError):
                pass
            spent = opened.epsilon_spent
            assert spent >= charged  # what is spent never comes back
            charged = spent
            assert spent <= opened.epsilon_committed * 1.002 + 1e-9
            assert opened.epsilon_allocated <= opened.epsilon_committed * (1 + 1e-9)
            assert opened.epsilon_committed <= BUDGET
    finally:
        opened.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RdpRule(1), "order=1"),
        (lambda: SumRule(0.0), "delta_per_plan=0.0"),
        (lambda: terms(SumRule(1e-4)), "which all plans share"),
    ],
)
def test_rules_that_promise_nothing_are_refused(make: object, words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("plans", [1, 3, 7, 10, 49])
def test_shares_of_delta_are_no_more_than_delta(plans: int) -> None:
    share = Fraction(SumRule.of(DELTA, plans).delta_per_plan)
    assert share * plans <= Fraction(DELTA) < share * plans * (1 + Fraction(1, 10**12))
