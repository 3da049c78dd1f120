"""Two claims of one ledger: with trust in the other sites of a secure sum, and alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from datetime import datetime, tzinfo
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import (
    AccountingError,
    BudgetError,
    LedgerCorruptError,
    LedgerError,
    SlotError,
)
from fedpriv.files import canonical_json
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.rdp import rdp
from fedpriv.privacy.accounting.shares import share_of
from fedpriv.privacy.ledger import administration, chain
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation, Terms
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule, new_rule
from fedpriv.privacy.ledger.witness import Witness, seal_key
from fedpriv.report.ledger_export import export_ledger, verify_ledger
from tests.example_counts import examples

DELTA, BUDGET, ALONE = 1e-5, 4.0, 9.0
DIGEST = "sha256:" + "a" * 64
LOCAL = Plan("job-1", "dp-lora", 0.1, 1.5, 1.0, 8, "sha256:" + "c" * 64)
SHARED = replace(LOCAL, max_colluding=1, shares=3)
FILTER = RdpRule(8, 3)
RULES: list[Rule] = [PlanRule(), FILTER, SumRule(DELTA / 4)]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def terms(rule: Rule, budget: float = BUDGET, alone: float | None = ALONE) -> Terms:
    return Terms(
        "0" * 32, 200, "record", 1, DELTA, budget, simulated=True, rule=rule, budget_alone=alone
    )


def claims(opened: Ledger) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """ε spent, allocated and committed, of both claims."""
    return (
        (opened.epsilon_spent, opened.epsilon_allocated, opened.epsilon_committed),
        (
            opened.epsilon_alone_spent,
            opened.epsilon_alone_allocated,
            opened.epsilon_alone_committed,
        ),
    )


def test_a_plan_alone_has_the_smallest_share_of_the_noise() -> None:
    assert LOCAL.alone is LOCAL and not LOCAL.is_shared
    assert SHARED.is_shared
    assert SHARED.alone == replace(LOCAL, noise_multiplier=share_of(1.5, 3))
    everybody_may_collude = replace(LOCAL, max_colluding=3)
    assert everybody_may_collude.is_shared and everybody_may_collude.alone == LOCAL
    assert SHARED.event() == LOCAL.event()


@pytest.mark.parametrize(
    "change",
    [
        {"shares": 2}, {"shares": 0}, {"shares": -1}, {"max_colluding": -1},
        {"max_colluding": 1, "shares": 0}, {"max_colluding": 1.0, "shares": 2},
        {"max_colluding": True, "shares": 2}, {"max_colluding": 1, "shares": 2.0},
        {"max_colluding": "1"}, {"max_colluding": 0, "shares": 10**400},
        {"max_colluding": None, "shares": True},
    ],
)  # fmt: skip
def test_a_plan_that_shares_nothing_sensible_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(AccountingError, match=r"Expected (max_colluding|shares) in range"):
        replace(LOCAL, **change)


@pytest.mark.parametrize("alone", [3.99, 0.0, -1.0, nan, inf, "9", True])
def test_a_second_budget_is_a_number_and_at_least_the_first(alone: Any) -> None:
    with pytest.raises(LedgerError, match=r"Expected budget_alone=.* at least the budget 4"):
        terms(PlanRule(), alone=alone)
    assert terms(PlanRule(), alone=BUDGET).budget_alone == BUDGET


@each_rule
def test_a_secure_sum_is_refused_where_nothing_pays_for_the_share(
    tmp_path: Path, rule: Rule
) -> None:
    with Ledger.create(tmp_path / "l.db", terms(rule, alone=None)) as opened:
        head = opened.head
        for ask in (opened.check, opened.commit, lambda plan: opened.ask(plan, range(1), DIGEST)):
            with pytest.raises(BudgetError, match=r"--epsilon-alone .* budget\.epsilon_alone"):
                ask(SHARED)
        with pytest.raises(BudgetError, match="no budget"):
            opened.commit(replace(LOCAL, max_colluding=9))  # all of the noise is its own
        assert opened.head == head
        opened.commit(LOCAL)
        assert claims(opened)[1] == (None, None, None)
        assert opened.figures()["epsilon_alone_committed"] is None


@pytest.mark.parametrize("rule", [PlanRule(), RdpRule(8), SumRule(DELTA / 4)])
def test_a_local_plan_costs_the_same_under_both_claims(tmp_path: Path, rule: Rule) -> None:
    with Ledger.create(tmp_path / "l.db", terms(rule)) as opened:
        assert claims(opened)[1][2] == ALONE
        opened.commit(LOCAL)
        opened.reserve("job-1", 0, DIGEST)
        trusting, alone = claims(opened)
        assert alone[:2] == trusting[:2]
        assert trusting[0] > 0 and trusting[1] > 0
        assert opened.max_colluding is None
        assert opened.history.used[: len(opened.history.used) // 2] * 2 == opened.history.used


@each_rule
def test_a_shared_plan_costs_the_share_alone(tmp_path: Path, rule: Rule) -> None:
    with Ledger.create(tmp_path / "l.db", terms(rule, alone=20.0)) as opened:
        charged = opened.commit(SHARED)
        opened.reserve("job-1", 0, DIGEST)
        (spent, allocated, _), (spent_alone, allocated_alone, committed_alone) = claims(opened)
        assert charged == allocated
        assert opened.max_colluding == 1
    share = share_of(1.5, 3)
    assert spent == epsilon_upper([LOCAL.event(1)], DELTA)
    assert spent_alone == epsilon_upper([Event(0.1, share, 1)], DELTA)
    delta = getattr(rule, "delta_per_plan", DELTA)
    whole, alone = LOCAL.event(), Event(0.1, share, 8)
    if isinstance(rule, RdpRule):
        used = opened.history.used
        orders = ((8, 1.5), (3, share))
        expected = [8 * float(rdp(0.1, noise, (order,))[0]) for order, noise in orders]
        assert used == pytest.approx(tuple(expected))
    else:
        assert allocated == epsilon_upper([whole], delta)
        assert allocated_alone == epsilon_upper([alone], delta)
    assert committed_alone == (allocated_alone if isinstance(rule, PlanRule) else 20.0)


@each_rule
def test_either_budget_refuses(tmp_path: Path, rule: Rule) -> None:
    with Ledger.create(tmp_path / "l.db", terms(rule)) as opened:
        head = opened.head
        with pytest.raises(BudgetError, match=r"Alone|alone ε = 0\.000.*, and alone 9\."):
            opened.commit(replace(SHARED, shares=16))
        with pytest.raises(BudgetError, match=r"more than"):
            opened.commit(replace(SHARED, steps=5000, shares=1))
        assert opened.head == head
        opened.commit(SHARED)  # and neither refusal left anything behind


@pytest.mark.parametrize("rule", RULES[1:], ids=lambda rule: rule.name)
def test_local_plans_use_up_what_a_secure_sum_would_have_had(tmp_path: Path, rule: Rule) -> None:
    """Both of the second budget; the first one has room for either."""
    with Ledger.create(tmp_path / "l.db", terms(rule, budget=6.0, alone=6.0)) as opened:
        opened.check(SHARED)
        opened.commit(replace(LOCAL, steps=100))
        with pytest.raises(BudgetError, match="more than what is left"):
            opened.commit(replace(SHARED, job="job-2"))
        opened.commit(replace(SHARED, job="job-2", shares=1))


@pytest.mark.parametrize("noise", [1e-110, 1e-200])
@pytest.mark.parametrize("plan", [LOCAL, SHARED], ids=["local", "shared"])
@each_rule
def test_noise_that_bounds_nothing_is_refused(
    tmp_path: Path, rule: Rule, plan: Plan, noise: float
) -> None:
    with Ledger.create(tmp_path / "l.db", terms(rule)) as opened:
        for _ in range(2):
            with pytest.raises(BudgetError, match="more"):
                opened.commit(replace(plan, noise_multiplier=noise))
        assert opened.head.rows == 1


def test_closing_gives_back_to_both(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Ledger.create(path, terms(FILTER, alone=20.0)) as opened:
        opened.commit(SHARED)
        opened.commit(replace(SHARED, job="untouched", shares=2))
        for slot in range(4):
            opened.reserve("job-1", slot, DIGEST)
        administration.close_job(opened, "untouched")
        both = opened.history.used
        administration.close_job(opened, "job-1")
        assert opened.history.used == tuple(amount / 2 for amount in both)
        figures = opened.figures()
    with Ledger.open(path) as opened:
        assert opened.figures() == figures
        assert opened.history._open == [0, 0]
        opened.commit(replace(SHARED, job="job-2", max_colluding=4))
        assert opened.max_colluding == 1
        administration.close_job(opened, "job-2")
        assert opened.max_colluding == 1  # nothing of it was ever released


@each_rule
@settings(max_examples=examples(20), deadline=None)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["commit", "reserve", "close", "reopen"]),
            st.integers(0, 4),
            st.integers(1, 12),
            st.floats(1.5, 4),
            st.none() | st.integers(1, 9),
        ),
        max_size=25,
    )
)
def test_no_history_gets_past_either_claim(
    tmp_path_factory: pytest.TempPathFactory,
    rule: Rule,
    actions: list[tuple[str, int, int, float, int | None]],
) -> None:
    """Local plans and secure sums in any order, against an account kept beside the ledger."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    opened = Ledger.create(path, terms(rule))
    slots: dict[str, set[int]] = {}
    plans: dict[str, Plan] = {}
    try:
        for kind, number, amount, noise, shares in actions:
            job = f"job-{number}"
            plan = replace(LOCAL, job=job, steps=amount, noise_multiplier=noise)
            if shares is not None:
                plan = replace(plan, max_colluding=1, shares=shares)
            try:
                if kind == "commit":
                    opened.commit(plan)
                    plans[job] = plan
                elif kind == "reserve":
                    opened.reserve(job, amount - 1, DIGEST)
                    slots.setdefault(job, set()).add(amount - 1)
                elif kind == "close":
                    administration.close_job(opened, job)
                else:
                    figures = opened.figures()
                    opened.close()
                    opened = Ledger.open(path)
                    assert opened.figures() == figures
            except (BudgetError, SlotError):
                pass
            used, limit = opened.history.used, opened.history.limit
            assert all(a <= b for a, b in zip(used, limit, strict=True))
            trusting, alone = claims(opened)
            for (spent, allocated, committed), budget in ((trusting, BUDGET), (alone, ALONE)):
                assert spent is not None and allocated is not None and committed is not None
                assert spent <= committed * 1.002 + 1e-9
                assert allocated <= committed * (1 + 1e-9)
                assert committed <= budget
        events = [
            Event(0.1, share_of(plans[job].noise_multiplier, plans[job].shares), len(taken))
            for job, taken in slots.items()
        ]
        assert opened.epsilon_alone_spent == epsilon_upper(events, DELTA)
    finally:
        opened.close()


@each_rule
def test_after_a_rollback_both_count_what_may_be_missing(tmp_path: Path, rule: Rule) -> None:
    path, witness, backup = tmp_path / "l.db", tmp_path / "witness", tmp_path / "backup.db"
    with Ledger.create(path, terms(rule, alone=30.0), witness) as opened:
        if not isinstance(rule, PlanRule):
            opened.commit(replace(LOCAL, steps=2))
    shutil.copy(path, backup)
    with Ledger.open(path, witness) as opened:
        opened.commit(replace(SHARED, job="job-2", steps=4))
        opened.reserve("job-2", 0, DIGEST)
        used, (_, before) = opened.history.used, claims(opened)
    assert Witness.read(witness).seen[-1].used == used
    shutil.copy(backup, path)
    with administration.recover(path, witness) as opened:
        assert opened.history.used == pytest.approx(used)
        (spent, allocated, committed), alone = claims(opened)
        assert alone[0] == alone[1] == pytest.approx(before[1])
        assert spent == allocated <= committed <= BUDGET
        assert alone[2] is not None and alone[1] is not None and alone[1] <= alone[2] <= 30.0
        assert alone[1] > allocated
        with pytest.raises(BudgetError):
            opened.commit(replace(SHARED, job="job-3", steps=1, shares=200))
    with pytest.raises(LedgerCorruptError, match="back in time"):
        Ledger.open(backup, witness)


def test_a_witness_of_one_claim_tells_nothing_of_two(tmp_path: Path) -> None:
    path, witness, backup = tmp_path / "l.db", tmp_path / "witness", tmp_path / "backup.db"
    with Ledger.create(path, terms(FILTER), witness) as opened:
        shutil.copy(path, backup)
        opened.commit(SHARED)
    told = Witness.read(witness).seen
    seen = [replace(one, used=one.used[:1], open=one.open[:1]) for one in told]
    Witness.start(witness, opened.terms.dataset_id, seen, seal_key(path))
    with pytest.raises(LedgerError, match="or is damaged"):
        administration.recover(backup, witness)


def test_a_ledger_grows_only_as_far_as_both_budgets_reach(tmp_path: Path) -> None:
    """What a δ of 1e-30 leaves of the first budget pays for the plan, and of the second not."""
    plan = replace(SHARED, steps=1, shares=9)
    rule = RdpRule(8)
    for alone, grows in ((16.0, False), (40.0, True)):
        with Ledger.create(tmp_path / f"{grows}.db", terms(rule, 12.0, alone)) as opened:
            opened.commit(plan)
            head = opened.head
            if not grows:
                with pytest.raises(LedgerError, match=r"more than the budget 12, and alone 16"):
                    administration.grow(opened, 400, 1e-30)
                assert opened.head == head
            else:
                administration.grow(opened, 400, 1e-30)
                assert (opened.terms.delta, opened.terms.budget_alone) == (1e-30, 40.0)


def test_figures_say_what_they_cover(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.db", terms(SumRule(DELTA / 4), alone=30.0)) as opened:
        opened.commit(SHARED)
        figures = opened.figures()
    assert figures["budget_alone"] == figures["epsilon_alone_committed"] == 30.0
    assert figures["epsilon_alone_allocated"] > figures["epsilon_allocated"]
    assert set(figures["means"]) == {key for key in figures if key.startswith("epsilon_")}
    for key in ("spent", "allocated", "committed"):
        assert "all other sites" in figures["means"][f"epsilon_alone_{key}"]
        assert "all other sites" not in figures["means"][f"epsilon_{key}"]
    [plan] = figures["plans"]
    assert (plan["max_colluding"], plan["shares"]) == (1, 3)


def forged(opened: Ledger, kind: str, **changes: object) -> dict[str, Any]:
    """An export whose rows of a kind were changed, and all hashes made anew."""
    document = export_ledger(opened)
    previous = chain.GENESIS
    for row in document["rows"]:
        row["body"].update(changes if row["kind"] == kind else {})
        previous = row["hash"] = chain.row_hash(previous, row["kind"], canonical_json(row["body"]))
    document["head"]["hash"] = previous
    return document


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("plan", {"shares": 400}, "more than its rule 'rdp' allows"),
        ("plan", {"shares": 0}, "does not follow"),
        ("plan", {"max_colluding": None}, "does not follow"),
        ("terms", {"budget_alone": None}, "does not follow"),
        ("terms", {"budget_alone": 1.0}, "terms can't be read"),
        ("terms", {"budget_alone": "9"}, "terms can't be read"),
    ],
)
def test_an_export_whose_second_claim_was_changed_shows(
    tmp_path: Path, kind: str, changes: dict[str, object], words: str
) -> None:
    with Ledger.create(tmp_path / "l.db", terms(FILTER)) as opened:
        opened.commit(SHARED)
        document, whole = forged(opened, kind, **changes), export_ledger(opened)
        figures = opened.figures()
    out = tmp_path / "export.json"
    out.write_text(json.dumps(whole))
    assert verify_ledger(out)[0] == figures
    out.write_text(json.dumps(document))
    with pytest.raises(LedgerCorruptError, match=words):
        verify_ledger(out)


def test_a_claim_alone_that_was_not_kept_is_not_stated(tmp_path: Path) -> None:
    """A witness may have seen more than there is, of the second budget only."""
    path, witness, backup = tmp_path / "l.db", tmp_path / "witness", tmp_path / "backup.db"
    with Ledger.create(path, terms(FILTER), witness) as opened:
        shutil.copy(path, backup)
        opened.commit(SHARED)
    seen = Witness.read(witness).seen
    seen[-1] = replace(seen[-1], used=(seen[-1].used[0], 1000.0))
    Witness.start(witness, opened.terms.dataset_id, seen, seal_key(path))
    with administration.recover(backup, witness) as opened:
        assert opened.guarantee.startswith("NOT KEPT")
        assert opened.epsilon_committed == BUDGET
        assert opened.epsilon_alone_committed is not None and opened.epsilon_alone_committed > 900


def test_a_ledger_with_one_budget_is_byte_for_byte_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of its head is the one that it had before there were two claims."""

    class Then(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Then:
            return cls(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr(chain, "datetime", Then)
    old = replace(terms(RdpRule(8), alone=None), witnessed=True)
    with Ledger.create(tmp_path / "l.db", old, tmp_path / "witness") as opened:
        opened.commit(LOCAL)
        reservation = opened.reserve("job-1", 0, DIGEST)
        assert isinstance(reservation, Reservation)
        opened.release(reservation, b"reply")
        administration.close_job(opened, "job-1")
        assert opened.head == chain.Head(
            5, "151b837298240cc3b7df624214c9653f7560df0d8455619a4d277fa4ed59828d"
        )
        assert {"max_colluding", "shares", "budget_alone"}.isdisjoint(
            key for row in opened.rows() for key in row.body
        )
    with Ledger.open(tmp_path / "l.db", tmp_path / "witness") as opened:
        assert opened.plan("job-1") == LOCAL
        assert opened.terms.budget_alone is None


def test_what_a_row_holds_is_what_is_read_back() -> None:
    for plan in (LOCAL, SHARED, replace(LOCAL, max_colluding=0)):
        assert Plan(**replace(plan, ticks=True).as_row()) == replace(plan, ticks=True) != plan
        assert Plan(**plan.as_row()) == plan
    assert SHARED.as_row() | {"ticks": False} == asdict(SHARED)
    assert terms(FILTER).as_row() == asdict(terms(FILTER))


def test_the_filter_alone_has_an_order_of_its_own() -> None:
    """A share of the noise is many times dearer at the order that serves the whole."""
    assert new_rule("rdp", {}, 4.0, DELTA) == RdpRule.best(4.0, DELTA)
    rule = new_rule("rdp", {}, 4.0, DELTA, 13.0)
    assert rule == RdpRule(RdpRule.best(4.0, DELTA).order, RdpRule.best(13.0, DELTA).order)
    assert new_rule("rdp", {"order": 8}, 4.0, DELTA, 13.0) == replace(rule, order=8)
    with_trust, alone = terms(rule, alone=13.0).claims
    plan = Plan("job-1", "dp-lora", 0.2, 1.54, 1.0, 30, "", max_colluding=1, shares=3)
    for claim in (replace(with_trust, budget=5.0), alone):
        assert claim.cost(plan, 30) <= claim.limit
    same = replace(rule, order_alone=None)
    assert terms(same, alone=13.0).claims[1].cost(plan, 30) > (4 * alone.limit[0],)
    for order in (1, 2.5, 10**6):
        with pytest.raises(LedgerError, match=f"order={order} to be"):
            RdpRule(8, order)  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="higher order"):
        terms(RdpRule(8, 2))


def test_a_release_of_a_secure_sum_has_a_tag_and_no_other_has(tmp_path: Path) -> None:
    tag, other = "d" * 64, "e" * 64
    with Ledger.create(tmp_path / "a.db", terms(SumRule(DELTA / 4), 20.0, 99.0)) as ledger:
        ledger.commit(SHARED)
        ledger.commit(replace(LOCAL, job="job-2"))
        shared, local = (ledger.reserve(job, 0, DIGEST) for job in ("job-1", "job-2"))
        assert isinstance(shared, Reservation) and isinstance(local, Reservation)
        rows = ledger.rows()
        for paid, wrong in ((shared, None), (local, tag)):
            with pytest.raises(SlotError, match="not open for release"):
                ledger.release(paid, b"share", wrong)
        assert ledger.rows() == rows
        assert ledger.share("job-1", 0, tag) is None
        ledger.release(local, b"sum")
        ledger.release(shared, b"share", tag)  # the newest job, whose replies are kept
    with Ledger.open(tmp_path / "a.db") as ledger:
        found = ledger.share("job-1", 0, tag)
        assert found is not None and found == b"share"
        with pytest.raises(SlotError, match="the sum of another set"):
            ledger.share("job-1", 0, other)
        with pytest.raises(SlotError):
            ledger.share("job-2", 0, tag)
