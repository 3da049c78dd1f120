"""Adaptive plans: whatever is asked slot by slot, the ledger pays no more than their budget."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import (
    AccountingError,
    BudgetError,
    FedprivError,
    LedgerCorruptError,
    SlotError,
)
from fedpriv.files import canonical_json
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.filter import RdpFilter
from fedpriv.privacy.accounting.rdp import epsilon_from_rdp
from fedpriv.privacy.ledger import administration, chain
from fedpriv.privacy.ledger.ledger import (
    AS_PLANNED,
    Ledger,
    OpenSlots,
    Plan,
    Reservation,
    SlotChoice,
    StoredReply,
    Terms,
)
from fedpriv.privacy.ledger.rules import EnvelopeRule, PlanRule, RdpRule, Rule, SumRule
from fedpriv.report.ledger_export import export_ledger, verify_ledger
from tests.earlier_rules import envelopes_are_made
from tests.example_counts import examples

DELTA, BUDGET, ORDER = 1e-5, 6.0, 8
PLAN = Plan("job-1", "dp-lora", 0.1, 1.5, 1.0, 8, "sha256:" + "c" * 64, order=ORDER)
FIXED = replace(PLAN, order=None)
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
RULES = [PlanRule(), RdpRule(ORDER), SumRule(DELTA / 4)]
HALF = SlotChoice(noise=2.0, rate=0.5)


def terms(rule: Rule, alone: float | None = None) -> Terms:
    return Terms(
        "0" * 32, 200, "record", 1, DELTA, BUDGET, simulated=True, rule=rule, budget_alone=alone
    )


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Ledger]:
    """A filter with an adaptive plan of its order."""
    with Ledger.create(tmp_path / "l.db", terms(RdpRule(ORDER))) as ledger:
        ledger.commit(PLAN)
        yield ledger


def budget_of(plan: Plan = PLAN) -> RdpFilter:
    assert plan.filter is not None
    return plan.filter


def debited(ledger: Ledger, job: str = "job-1") -> Fraction:
    return ledger.history.accounts[job].debited


def take(ledger: Ledger, slot: int, choice: SlotChoice = AS_PLANNED) -> Reservation:
    reservation = ledger.reserve("job-1", slot, DIGEST, choice)
    assert isinstance(reservation, Reservation)
    return reservation


def bodies(ledger: Ledger, kind: str) -> list[dict[str, Any]]:
    return [row.body for row in ledger.rows() if row.kind == kind]


def test_a_slot_is_debited_for_what_it_asks_when_it_is_reserved(opened: Ledger) -> None:
    assert debited(opened) == 0
    paid = take(opened, 0, HALF)
    once = Fraction(budget_of().debit(2.0, 0.5))
    assert debited(opened) == once
    assert paid.choice == HALF
    assert paid.event == Event(0.05, 3.0, 1)
    assert bodies(opened, "reserve") == [
        {"job": "job-1", "slot": 0, "request": DIGEST, "noise": 2.0, "rate": 0.5}
    ]
    assert opened.slot_events("job-1") == [(0, Event(0.05, 3.0, 1))]
    debit = np.array([budget_of().debit(2.0, 0.5)])
    assert opened.epsilon_spent == epsilon_from_rdp(debit, DELTA, (ORDER,))[0]
    opened.release(paid, b"reply")
    assert debited(opened) == once
    take(opened, 1)
    assert debited(opened) == once + Fraction(budget_of().debit())
    assert bodies(opened, "reserve")[1]["noise"] == bodies(opened, "reserve")[1]["rate"] == 1.0


def test_a_plan_of_fixed_noise_has_the_rows_that_it_always_had(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.db", terms(RdpRule(ORDER))) as opened:
        opened.commit(FIXED)
        paid = take(opened, 0)
        assert bodies(opened, "reserve") == [{"job": "job-1", "slot": 0, "request": DIGEST}]
        assert "order" not in bodies(opened, "plan")[0]
        assert (paid.event, paid.choice) == (FIXED.event(1), AS_PLANNED)


def test_all_slots_as_planned_fit_and_use_it_up(opened: Ledger) -> None:
    for slot in range(PLAN.steps):
        take(opened, slot)
    assert debited(opened) <= Fraction(budget_of().budget)
    assert float(debited(opened)) == pytest.approx(budget_of().budget, rel=1e-14)
    assert opened.epsilon_spent <= budget_of().epsilon(DELTA)


def test_a_slot_that_would_overrun_is_refused_and_one_that_fits_is_not(opened: Ledger) -> None:
    """To the last digit: the noise of which the debit is what is left, and a little less noise."""
    take(opened, 0, SlotChoice(noise=0.9))
    left = math.nextafter(float(Fraction(budget_of().budget) - debited(opened)), 0.0)
    least, rows = budget_of().noise_for(left), opened.head
    for less in (0.99 * least, 0.1, 1e-300):
        with pytest.raises(BudgetError, match=r"Rényi budget at order 8, and \S+ of \S+ is left"):
            opened.reserve("job-1", 1, DIGEST, SlotChoice(noise=less))
        with pytest.raises(BudgetError):
            opened.ask(PLAN, range(1, 2), DIGEST, SlotChoice(noise=less))
    assert opened.head == rows
    take(opened, 1, SlotChoice(noise=least))
    with pytest.raises(BudgetError):
        opened.reserve("job-1", 2, DIGEST, SlotChoice(noise=10.0))
    assert debited(opened) <= Fraction(budget_of().budget)


def test_there_is_no_slot_beyond_the_plans_however_little_it_asks(opened: Ledger) -> None:
    for slot in range(PLAN.steps):
        take(opened, slot, SlotChoice(noise=1000.0))
    with pytest.raises(SlotError, match="no plan"):
        opened.reserve("job-1", PLAN.steps, DIGEST, SlotChoice(noise=1000.0))


def test_slots_that_are_paid_together_have_to_fit_together(opened: Ledger) -> None:
    choice = SlotChoice(noise=budget_of().noise_for(budget_of().budget / 3.5))
    head = opened.head
    with pytest.raises(BudgetError, match="4 ×"):
        opened.reserve_all("job-1", range(4), DIGEST, choice)
    assert opened.head == head
    assert len(opened.reserve_all("job-1", range(3), DIGEST, choice)) == 3


REFUSED = [
    (SlotChoice(rate=1.0000001), "rate=1.0000001"),
    (SlotChoice(rate=2.0, noise=100.0), "rate=2.0"),
    (SlotChoice(rate=0.0), "rate=0.0"),
    (SlotChoice(rate=-0.5), "rate=-0.5"),
    (SlotChoice(rate=math.nan), "rate=nan"),
    (SlotChoice(noise=0.0), "noise=0.0"),
    (SlotChoice(noise=-1.0), "noise=-1.0"),
    (SlotChoice(noise=math.nan), "noise=nan"),
    (SlotChoice(noise=math.inf), "noise=inf"),
    (SlotChoice(noise=1e300), "noise=1e"),
]


@pytest.mark.parametrize(("choice", "words"), REFUSED)
def test_what_no_slot_may_ask_is_refused_before_anything_is_written(
    tmp_path: Path, choice: SlotChoice, words: str
) -> None:
    with Ledger.create(tmp_path / "l.db", terms(RdpRule(ORDER))) as opened:
        head = opened.head
        with pytest.raises(AccountingError, match=words):
            opened.ask(PLAN, range(1), DIGEST, choice)
        assert opened.head == head
        opened.commit(PLAN)
        for ask in (opened.reserve, lambda *a: opened.ask(PLAN, range(1), DIGEST, a[-1])):
            with pytest.raises(AccountingError, match=words):
                ask("job-1", 0, DIGEST, choice)
        assert opened.slots("job-1") == []


@pytest.mark.parametrize("values", [(1, 1.0), (1.0, True), ("1.0", 1.0), (10**400, 1.0)])
def test_a_choice_is_two_numbers(values: tuple[Any, Any]) -> None:
    with pytest.raises(AccountingError, match="decimal point"):
        SlotChoice(*values)


def test_a_plan_of_fixed_noise_has_nothing_to_choose(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.db", terms(RdpRule(ORDER))) as opened:
        with pytest.raises(AccountingError, match="is not adaptive"):
            opened.ask(FIXED, range(1), DIGEST, SlotChoice(noise=2.0))
        opened.commit(FIXED)
        for choice in (SlotChoice(noise=2.0), SlotChoice(rate=0.5)):
            with pytest.raises(AccountingError, match="is not adaptive"):
                opened.reserve("job-1", 0, DIGEST, choice)
        assert opened.slots("job-1") == []


def test_asked_for_and_paid_it_is_what_was_asked(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.db", terms(RdpRule(ORDER))) as opened:
        asked = opened.ask(PLAN, range(1), DIGEST, HALF)
        assert isinstance(asked, OpenSlots)
        [paid] = asked.pay()
        assert (paid.choice, paid.event) == (HALF, Event(0.05, 3.0, 1))
        opened.release(paid, b"reply")
        assert opened.ask(PLAN, range(1), DIGEST, HALF) == StoredReply(b"reply")


def test_after_a_crash_a_slot_is_not_debited_again(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger.create(path, terms(RdpRule(ORDER))) as opened:
        opened.commit(PLAN)
        take(opened, 0, HALF)
        once, head, spent = debited(opened), opened.head, opened.epsilon_spent
        take(opened, 0, HALF)
    for _ in range(2):
        with Ledger.open(path) as opened:
            assert (debited(opened), opened.epsilon_spent) == (once, spent)
            paid = take(opened, 0, HALF)
            assert (paid.choice, opened.head, debited(opened)) == (HALF, head, once)
    with Ledger.open(path) as opened:
        opened.release(take(opened, 0, HALF), b"reply")
        assert opened.reserve("job-1", 0, DIGEST, HALF) == b"reply"
        assert debited(opened) == once


def test_a_slot_that_is_paid_for_stays_open_when_nothing_else_fits(opened: Ledger) -> None:
    all_of_it = SlotChoice(noise=budget_of().noise_for(budget_of().budget))
    take(opened, 0, all_of_it)
    with pytest.raises(BudgetError):
        opened.reserve("job-1", 1, DIGEST, SlotChoice(noise=100.0))
    opened.release(take(opened, 0, all_of_it), b"reply")
    assert opened.reserve("job-1", 0, DIGEST, all_of_it) == b"reply"


def test_the_same_slot_at_another_noise_or_rate_is_refused_for_ever(tmp_path: Path) -> None:
    """Even if somebody's digest left the choice out."""
    path = tmp_path / "l.db"
    others = (
        AS_PLANNED,
        SlotChoice(noise=2.0),
        SlotChoice(noise=4.0, rate=0.5),
        SlotChoice(2.0, 0.25),
    )

    def refused(ledger: Ledger) -> None:
        for choice in others:
            for call in (
                lambda c: ledger.reserve("job-1", 0, DIGEST, c),
                lambda c: ledger.ask(PLAN, range(1), DIGEST, c),
            ):
                with pytest.raises(SlotError, match="another noise or rate"):
                    call(choice)
        with pytest.raises(SlotError, match="another request"):
            ledger.reserve("job-1", 0, OTHER, HALF)

    with Ledger.create(path, terms(RdpRule(ORDER))) as opened:
        opened.commit(PLAN)
        take(opened, 0, HALF)
        refused(opened)
    with Ledger.open(path) as opened:
        refused(opened)
        opened.release(take(opened, 0, HALF), b"reply")
        refused(opened)


def test_slots_of_one_request_have_one_choice(opened: Ledger) -> None:
    take(opened, 0, HALF)
    take(opened, 1, SlotChoice(noise=3.0))
    for choice in (HALF, SlotChoice(noise=3.0)):
        with pytest.raises(SlotError, match="another noise or rate"):
            opened.reserve_all("job-1", range(2), DIGEST, choice)


# Rules


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_it_is_charged_for_in_full_when_it_is_accepted(tmp_path: Path, rule: Rule) -> None:
    with Ledger.create(tmp_path / "l.db", terms(rule)) as opened:
        delta = opened.terms.plan_delta
        whole = budget_of().epsilon(delta)
        assert opened.commit(PLAN) == pytest.approx(whole, rel=1e-12)
        assert whole > epsilon_upper([FIXED.event()], delta)
        take(opened, 0, HALF)
        assert opened.epsilon_allocated == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("rule", [PlanRule(), SumRule(DELTA / 4)], ids=lambda rule: rule.name)
def test_closing_gives_nothing_back_where_nothing_ever_is(tmp_path: Path, rule: Rule) -> None:
    with Ledger.create(tmp_path / "l.db", terms(rule)) as opened:
        whole = opened.commit(PLAN)
        take(opened, 0, HALF)
        assert administration.close_job(opened, "job-1") == whole


def test_closing_gives_back_what_was_not_debited(opened: Ledger) -> None:
    take(opened, 0, HALF)
    take(opened, 1, SlotChoice(noise=0.8))
    taken = budget_of().debit(2.0, 0.5) + budget_of().debit(0.8)
    administration.close_job(opened, "job-1")
    assert opened.history.used == (pytest.approx(taken, rel=1e-12),)
    assert Fraction(opened.history.used[0]) >= debited(opened)
    opened.commit(replace(PLAN, job="job-2"))
    administration.close_job(opened, "job-2")  # no slot of it was reserved
    assert opened.history.used == (pytest.approx(taken, rel=1e-12),)
    with pytest.raises(SlotError, match="closed"):
        opened.reserve("job-1", 2, DIGEST, HALF)


def test_a_plan_that_costs_more_than_the_budget_as_a_filter_is_refused(tmp_path: Path) -> None:
    dear = replace(PLAN, steps=30)
    within = epsilon_upper([dear.event()], DELTA) * 1.01
    assert within < dear.epsilon(DELTA)
    for rule in (PlanRule(), SumRule(DELTA), RdpRule(ORDER)):
        of_it = replace(terms(rule), budget=within)
        with Ledger.create(tmp_path / f"{rule.name}.db", of_it) as opened:
            with pytest.raises(BudgetError):
                opened.commit(dear)
            assert opened.head.rows == 1


@envelopes_are_made()
def test_an_envelope_holds_none(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.db", terms(EnvelopeRule(0.1, 1.5, 20))) as opened:
        with pytest.raises(BudgetError, match=r"'envelope'.*of fixed noise only"):
            opened.commit(PLAN)
        opened.commit(FIXED)


@pytest.mark.parametrize("order", [2, 7, 9, 64])
def test_a_filter_holds_those_of_its_own_order(tmp_path: Path, order: int) -> None:
    with Ledger.create(tmp_path / "l.db", terms(RdpRule(ORDER))) as opened:
        with pytest.raises(BudgetError, match=f"order {order}.*Propose it with order 8"):
            opened.commit(replace(PLAN, order=order))
        assert opened.head.rows == 1


def test_the_claim_alone_may_have_a_lower_order_and_no_higher(tmp_path: Path) -> None:
    """Rényi divergence grows with its order, so that the plan's budget holds at a lower one."""
    rule = RdpRule(ORDER, 4)
    with Ledger.create(tmp_path / "lower.db", terms(rule, alone=12.0)) as opened:
        opened.commit(PLAN)
        assert opened.history.used == (budget_of().budget, budget_of().budget)
        at_its_own = replace(PLAN, order=4).filter
        assert at_its_own is not None and at_its_own.budget < budget_of().budget
    higher = terms(RdpRule(ORDER, 9), alone=12.0)
    with (
        Ledger.create(tmp_path / "higher.db", higher) as opened,
        pytest.raises(BudgetError, match=r"order 9, if all other sites"),
    ):
        opened.commit(PLAN)


def test_an_adaptive_plan_is_never_shared() -> None:
    with pytest.raises(AccountingError, match="order"):
        replace(PLAN, max_colluding=1, shares=3)


@pytest.mark.parametrize("order", [1, 513, 8.0, True, "8"])
def test_an_order_that_is_none_makes_no_plan(order: Any) -> None:
    with pytest.raises(AccountingError, match="order"):
        replace(PLAN, order=order)


# Files that somebody made


def forged(opened: Ledger, kind: str, changes: dict[str, Any]) -> dict[str, Any]:
    """An export whose rows of a kind were changed, and all hashes made anew."""
    document = export_ledger(opened)
    previous = chain.GENESIS
    for row in document["rows"]:
        row["body"].update(changes if row["kind"] == kind else {})
        row["body"] = {k: v for k, v in row["body"].items() if v is not ...}
        previous = row["hash"] = chain.row_hash(previous, row["kind"], canonical_json(row["body"]))
    document["head"]["hash"] = previous
    return document


def write_rows(path: Path, document: dict[str, Any]) -> None:
    """Put the rows of an export into a ledger's file."""
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER rows_are_final")
    for number, row in enumerate(document["rows"], 1):
        body = canonical_json(row["body"]).decode()
        values = (body, row["hash"], number)
        connection.execute("UPDATE rows SET body = ?, hash = ? WHERE number = ?", values)
    connection.commit()
    connection.close()


FORGED: list[tuple[str, dict[str, Any]]] = [
    ("reserve", {"noise": 0.2}),  # an overrun
    ("reserve", {"noise": 1e-200}),
    ("reserve", {"rate": 1.1}),
    ("reserve", {"rate": 0.0}),
    ("reserve", {"noise": -2.0}),
    ("reserve", {"noise": 0.0}),
    ("reserve", {"noise": 1e300}),
    ("reserve", {"noise": "2.0"}),
    ("reserve", {"noise": 2}),
    ("reserve", {"noise": None}),
    ("reserve", {"noise": ...}),
    ("reserve", {"noise": ..., "rate": ...}),
    ("reserve", {"debit": 0.0}),
    ("plan", {"order": ...}),
    ("plan", {"order": None}),
    ("plan", {"order": 7}),
    ("plan", {"order": 1}),
    ("plan", {"order": 8.0}),
    ("plan", {"max_colluding": 1, "shares": 2}),
]


@pytest.mark.parametrize(("kind", "changes"), FORGED)
def test_a_forged_file_is_refused_when_it_is_read(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    path, out = tmp_path / "l.db", tmp_path / "export.json"
    with Ledger.create(path, terms(RdpRule(ORDER))) as opened:
        opened.commit(PLAN)
        take(opened, 0, HALF)
        whole, document = export_ledger(opened), forged(opened, kind, changes)
        figures = opened.figures()
    out.write_text(json.dumps(whole))
    assert verify_ledger(out)[0] == figures
    out.write_text(json.dumps(document))
    with pytest.raises(LedgerCorruptError, match="does not follow"):
        verify_ledger(out)
    write_rows(path, document)
    for reading in (True, False):
        with pytest.raises(LedgerCorruptError, match="does not follow"):
            Ledger.open(path, reading=reading)


@pytest.mark.parametrize("changes", [{"noise": 2.0}, {"rate": 1.0}, {"noise": 1.0, "rate": 1.0}])
def test_a_choice_in_a_plan_of_fixed_noise_is_forged(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with Ledger.create(tmp_path / "l.db", terms(RdpRule(ORDER))) as opened:
        opened.commit(FIXED)
        take(opened, 0)
        document = forged(opened, "reserve", changes)
    (tmp_path / "export.json").write_text(json.dumps(document))
    with pytest.raises(LedgerCorruptError, match="does not follow"):
        verify_ledger(tmp_path / "export.json")


def test_an_overrun_by_many_small_slots_is_forged_too(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.db", terms(RdpRule(ORDER))) as opened:
        opened.commit(PLAN)
        for slot in range(PLAN.steps):
            take(opened, slot)
        document = forged(opened, "reserve", {"noise": 0.999})
    (tmp_path / "export.json").write_text(json.dumps(document))
    with pytest.raises(LedgerCorruptError, match="does not follow"):
        verify_ledger(tmp_path / "export.json")


def test_an_export_says_what_a_filter_has_and_what_was_taken(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.db", terms(RdpRule(ORDER))) as opened:
        opened.commit(PLAN)
        opened.commit(replace(FIXED, job="fixed", steps=1))
        take(opened, 0, HALF)
        first, second = opened.figures()["plans"]
        whole = export_ledger(opened)
        figures = opened.figures()
    assert first["order"] == ORDER
    assert first["filter"] == {
        "order": ORDER,
        "budget": budget_of().budget,
        "debited": budget_of().debit(2.0, 0.5),
    }
    assert second["filter"] is None
    (tmp_path / "export.json").write_text(json.dumps(whole))
    assert verify_ledger(tmp_path / "export.json")[0] == figures


# Older copies


def test_after_a_rollback_an_adaptive_plan_is_spent_in_full(tmp_path: Path) -> None:
    path, witness, backup = tmp_path / "l.db", tmp_path / "witness", tmp_path / "backup.db"
    with Ledger.create(path, terms(RdpRule(ORDER)), witness) as opened:
        opened.commit(PLAN)
        take(opened, 0, HALF)
        shutil.copy(path, backup)
        take(opened, 1, SlotChoice(noise=0.9))
        whole = opened.epsilon_allocated
    with administration.recover(backup, witness) as opened:
        assert opened.epsilon_allocated == whole == pytest.approx(budget_of().epsilon(DELTA))
        assert opened.epsilon_spent >= whole
        for slot in (1, 2):
            with pytest.raises(SlotError, match="closed"):
                opened.reserve("job-1", slot, DIGEST, HALF)


def test_a_closed_plan_stays_at_its_debits_after_a_rollback(tmp_path: Path) -> None:
    path, witness, backup = tmp_path / "l.db", tmp_path / "witness", tmp_path / "backup.db"
    with Ledger.create(path, terms(RdpRule(ORDER)), witness) as opened:
        opened.commit(PLAN)
        take(opened, 0, HALF)
        administration.close_job(opened, "job-1")
        used = opened.history.used
        shutil.copy(path, backup)
        opened.commit(replace(PLAN, job="job-2"))
    with administration.recover(backup, witness) as opened:
        assert opened.history.used[0] >= used[0] + budget_of().budget
        assert opened.history.used[0] == pytest.approx(used[0] + budget_of().budget)


# Whatever is asked

hostile = st.one_of(
    st.floats(0.3, 8.0),
    st.floats(-2, 2).map(lambda x: 10**x),
    st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 1e-300, 5e-324, 1e308]),
)
rate = st.one_of(st.floats(0.01, 1.0), st.just(1.0), hostile)
actions = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "again", "release", "reopen", "several"]),
        st.integers(-1, PLAN.steps + 1),
        hostile,
        rate,
    ),
    max_size=30,
)


def oracle(events: list[Event]) -> float:
    """What another library says of the events at the order."""
    accountant = RdpAccountant(orders=[ORDER])
    for event in events:
        step = dp_accounting.PoissonSampledDpEvent(
            event.sample_rate, dp_accounting.GaussianDpEvent(event.noise_multiplier)
        )
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, event.count))
    return float(accountant._rdp[0])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@settings(max_examples=examples(40), deadline=None)
@given(actions=actions)
def test_no_sequence_gets_past_the_budget_or_the_steps(
    tmp_path_factory: pytest.TempPathFactory,
    rule: Rule,
    actions: list[tuple[str, int, float, float]],
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "l.db"
    opened = Ledger.create(path, terms(rule))
    opened.commit(PLAN)
    filter, paid = budget_of(), dict[int, Reservation]()
    try:
        for kind, slot, noise, rate in actions:
            before = debited(opened)
            try:
                if kind == "release" and slot in paid:
                    opened.release(paid[slot], b"reply")
                elif kind == "again" and slot in paid:
                    opened.reserve("job-1", slot, DIGEST, paid[slot].choice)
                    assert debited(opened) == before
                elif kind == "reopen":
                    figures = opened.figures()
                    opened.close()
                    opened = Ledger.open(path)
                    assert opened.figures() == figures
                else:
                    slots = range(slot, slot + (3 if kind == "several" else 1))
                    found = opened.reserve_all("job-1", slots, DIGEST, SlotChoice(noise, rate))
                    if not isinstance(found, bytes):
                        paid.update({one.slot: one for one in found})
            except (BudgetError, SlotError, AccountingError):
                assert debited(opened) == before  # nothing was written
            events = [one.event for one in paid.values()]
            exact = sum(
                (Fraction(filter.debit(p.choice.noise, p.choice.rate)) for p in paid.values()),
                Fraction(0),
            )
            assert debited(opened) == exact <= Fraction(filter.budget)
            assert len(paid) == len(opened.slots("job-1")) <= PLAN.steps
            assert oracle(events) <= filter.budget * (1 + 1e-9) + 1e-11
            assert all(e.sample_rate <= PLAN.sample_rate for e in events)
        events = [one.event for one in paid.values()]
        numerical = epsilon_upper(events, DELTA)
        assert numerical <= filter.epsilon(DELTA)
        # The numerical accountant has nothing to say of events that were chosen on the way.
        if paid:
            assert numerical <= opened.epsilon_spent
        assert opened.epsilon_spent <= opened.epsilon_allocated * (1 + 1e-12)
        assert opened.epsilon_committed <= BUDGET
    finally:
        opened.close()


@settings(max_examples=examples(20), deadline=None)
@given(
    choices=st.lists(
        st.builds(SlotChoice, st.floats(0.5, 5.0), st.floats(0.05, 1.0)), min_size=1, max_size=40
    )
)
def test_jobs_by_turns_stay_within_a_ledger_for_life(
    tmp_path_factory: pytest.TempPathFactory, choices: list[SlotChoice]
) -> None:
    """Adaptive and fixed plans in one filter, closed with what they debited, and more of them."""
    path = tmp_path_factory.mktemp("ledger") / "l.db"
    with Ledger.create(path, terms(RdpRule(ORDER))) as opened:
        limit = Fraction(opened.history.limit[0])
        total = Fraction(0)
        for number, choice in enumerate(choices):
            plan = replace(PLAN if number % 3 else FIXED, job=f"job-{number}")
            try:
                opened.commit(plan)
                opened.reserve(plan.job, 0, DIGEST, choice if plan.order else AS_PLANNED)
                total += Fraction(
                    budget_of().debit(choice.noise, choice.rate)
                    if plan.order
                    else budget_of().debit()
                )
            except FedprivError as error:
                assert isinstance(error, BudgetError)
            if opened.plan(plan.job) is not None:
                administration.close_job(opened, plan.job)
        assert total <= limit * (1 + Fraction(1, 10**9))
        assert opened.epsilon_spent <= BUDGET


def test_a_choice_is_what_its_row_says() -> None:
    assert SlotChoice(**asdict(HALF)) == HALF
    assert HALF.event(PLAN) == Event(0.05, 3.0, 1)
    assert HALF.event(FIXED) == FIXED.event(1)
