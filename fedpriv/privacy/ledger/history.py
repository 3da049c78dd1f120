"""Add up the rows of a ledger: terms, plans, slots, and what they cost.

Nothing here touches a file, so that the same reading serves an open ledger and the export that
somebody else verifies.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any, NamedTuple

from fedpriv.errors import BudgetError, FedprivError, LedgerError, shown
from fedpriv.privacy.ledger.account import Account
from fedpriv.privacy.ledger.chain import Head
from fedpriv.privacy.ledger.claims import ALONE, Claim, check_second_budget
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import Amounts, PlanRule, rule_of
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.privacy.usual import MAX_DRAWN

Slot = tuple[str, int]
EPSILONS = tuple(
    f"epsilon{claim}_{kind}"
    for claim in ("", "_alone")
    for kind in ("spent", "allocated", "committed")
)
UNKNOWN = "unknown"  # numerics of plans that were lost
SPENT = (
    "the slots that were reserved so far; no guarantee, as when to stop may have depended on"
    " what was released"
)
ALLOCATED = "the plans accepted so far in full, less what the rule gives back of closed ones"


class Snapshot(NamedTuple):
    """What plans had taken from a row on: all of them, and those that were open, in full.

    It has the declared size and δ, too. Amounts are those of the claim with trust, followed by
    those of the claim alone where the ledger has a budget for it.
    """

    rows: int
    used: Amounts
    open: Amounts
    declared_size: int
    delta: float


class History:
    """Hold the state that rows lead to. The rows are taken in one after the other.

    Args:
        kind, body: those of the first row, which holds the terms.

    Attributes:
        accounts: job → its plan and how far it is.
        approvals: job → who approved it, where persons are named, each as a keyed digest.
        requests: reserved slot → digest of the request it was reserved for.
        releases: released slot → digest of the reply.
        tags: released slot of a secure sum → tag of its set.
        lost: the heads of lost copies that were seen and are accounted for.
        distinct: statements that look-alikes of another ledger's units are other people: the data
            set of that ledger, and who says so.
        grown: whether the declared size was raised, or δ lowered, since the ledger was made.

    Raises:
        LedgerError: the ledger is of a rule that is not read any more.
        ValueError: a row that can't follow those before it.
    """

    def __init__(self, kind: str, body: dict[str, Any]) -> None:
        fields = _fields(body)
        rule = fields.get("rule")
        if isinstance(rule, dict) and rule.get("name") == "envelope":
            raise LedgerError(
                "This ledger has the rule 'envelope', which no version after fedpriv 0.2.0 adds up."
                " Nothing was changed. Use 0.2.0 for it."
            )
        try:
            if kind != "terms":
                raise ValueError("the first row is not the terms")
            self.terms = Terms(**{**fields, "rule": rule_of(fields["rule"])})
        except (FedprivError, ArithmeticError, TypeError, KeyError) as error:
            raise ValueError(f"its terms can't be read ({error})") from None
        self.accounts: dict[str, Account] = {}
        self.approvals: dict[str, list[dict[str, str]]] = {}
        self.requests: dict[Slot, str] = {}
        self.releases: dict[Slot, str] = {}
        self.tags: dict[Slot, str] = {}
        self.lost: set[Head] = set()
        self.distinct: list[tuple[str, str]] = []
        self.grown = False
        self.rows = 1
        self._used = [Fraction(0)] * len(self.limit)  # exact, whatever is added and given back
        self._open = [Fraction(0)] * len(self.limit)
        self._snapshots = [Snapshot(1, self.used, self.used, *self._sizes)]

    def take(self, kind: str, body: dict[str, Any]) -> None:
        """Take in one more row.

        Raises:
            LedgerError: the row is a plan of an earlier version that chose its noise between steps.
            ValueError: the row does not follow from those before it.
        """
        fields = _fields(body)
        if kind == "plan" and "order" in fields:
            raise LedgerError(
                f"Job {shown(fields.get('job'))} of this ledger chose its noise between its steps,"
                " which no version after fedpriv 0.2.0 adds up. Nothing was changed. Use 0.2.0 for"
                " it."
            )
        readers: dict[str, Callable[..., None]] = {
            "plan": self._plan,
            "approved": self._approved,
            "reserve": self._reserve,
            "release": self._release,
            "close": self._close,
            "restored": self._restored,
            "distinct": self._distinct,
            "grown": self._grown,
        }
        try:
            readers[kind](**fields)
            if kind not in ("reserve", "release"):
                taken = self.used, tuple(map(float, self._open))
                self._snapshots.append(Snapshot(self.rows + 1, *taken, *self._sizes))
        except (FedprivError, ArithmeticError, TypeError, KeyError, ValueError):
            job = fields.get("job", "")
            raise ValueError(f"a row {kind!r} of job {job!r} does not follow") from None
        self.rows += 1

    def _plan(self, **fields: Any) -> None:
        plan = Plan(**fields)
        if plan.job in self.accounts:
            raise ValueError
        check_second_budget(plan, self.terms.budget_alone)
        self.accounts[plan.job] = account = Account(plan)
        self._charge(self._used, account, 1)
        self._charge(self._open, account, 1)

    def _approved(self, job: str, approvals: list[dict[str, str]]) -> None:
        if job not in self.accounts or job in self.approvals or not approvals:
            raise ValueError
        for one in approvals:
            known = {"person", "reason"} <= one.keys() <= {"person", "reason", "name", "text"}
            if not (known and all(type(text) is str for text in one.values())):
                raise ValueError
        self.approvals[job] = approvals

    def _charge(self, sums: list[Fraction], account: Account, sign: int) -> None:
        steps = account.charged(refunds=self.terms.rule.refunds)
        for index, amount in enumerate(self._cost(account.plan, steps)):
            sums[index] += sign * Fraction(amount)

    def _cost(self, plan: Plan, steps: int) -> Amounts:
        """Return what a number of steps of a plan takes, under every claim."""
        return tuple(amount for claim in self.terms.claims for amount in claim.cost(plan, steps))

    def _of(self, claim: int, amounts: Sequence[Fraction]) -> Amounts:
        """Return the part of all amounts that belongs to one claim."""
        size = len(amounts) // len(self.terms.claims)
        return tuple(map(float, amounts[claim * size : (claim + 1) * size]))

    def _reserve(self, job: str, slot: int, request: str) -> None:
        account, key = self.accounts[job], (job, slot)
        if account.closed or key in self.requests or type(request) is not str:
            raise ValueError
        if type(slot) is not int or not 0 <= slot < account.plan.steps:
            raise ValueError
        self.requests[key] = request
        account.reserved += 1

    def _release(self, job: str, slot: int, reply: str, tag: str | None = None) -> None:
        key = (job, slot)
        if key not in self.requests or key in self.releases or type(reply) is not str:
            raise ValueError
        if (type(tag) is str) != self.accounts[job].plan.is_shared:
            raise ValueError
        self.releases[key] = reply
        if tag is not None:
            self.tags[key] = tag

    def _close(self, job: str) -> None:
        account = self.accounts[job]
        if account.closed:
            raise ValueError
        self._charge(self._open, account, -1)
        self._charge(self._used, account, -1)
        account.closed = "closed"
        self._charge(self._used, account, 1)

    def _restored(self, rows: int, heads: list[str], lost: list[float]) -> None:
        """Continue an older copy: all that was open, or was taken in the lost copy, is spent.

        Args:
            rows: the number of rows at the newest head that was seen of the lost copy.
            heads: the hashes of the lost copy's last rows, all that this copy lacks, oldest first.
            lost: the amounts that were taken in those rows.
        """
        if not all(type(amount) in (int, float) and 0 <= amount < math.inf for amount in lost):
            raise ValueError
        if type(rows) is not int or type(heads) is not list or not 0 < len(heads) <= rows:
            raise ValueError
        if not all(type(head) is str for head in heads):
            raise ValueError
        for account in self.accounts.values():
            account.closed = account.closed or "lost"
        self._open = [Fraction(0)] * len(self._open)
        self._used = [a + Fraction(b) for a, b in zip(self._used, lost, strict=True)]
        first = rows - len(heads) + 1
        self.lost.update(Head(number, head) for number, head in enumerate(heads, first))

    def _distinct(self, other: str, by: str) -> None:
        if not all(type(text) is str and text for text in (other, by)):
            raise ValueError
        self.distinct.append((other, by))

    def _grown(self, declared_size: int, delta: float) -> None:
        if declared_size < self.terms.declared_size or delta > self.terms.delta:
            raise ValueError
        if isinstance(self.terms.rule, PlanRule) and self.used[0]:
            raise ValueError
        self.terms = replace(self.terms, declared_size=declared_size, delta=delta)
        self.grown = True

    def allocated_with(self, plan: Plan) -> tuple[float, float | None]:
        """Return `epsilon_allocated`, and that of the claim alone, if one more plan were taken in.

        Only new plans are checked: rows that were accepted once are read back, whatever a later
        accountant makes of them.

        Raises:
            BudgetError: the plan is over what is left, its job is known, or it draws more units
                than its sums are exact for.
        """
        claims = self.terms.claims
        if plan.job in self.accounts:
            raise BudgetError(f"Job {plan.job!r} was here before with another plan, or is closed.")
        self.check_drawn(plan)
        check_second_budget(plan, self.terms.budget_alone)
        for claim in claims:
            claim.check(plan)
        cost = self._cost(plan, plan.steps)
        used = [total + Fraction(amount) for total, amount in zip(self._used, cost, strict=True)]
        if not all(amount <= limit for amount, limit in zip(used, self.limit, strict=True)):
            raise BudgetError(self._refusal(plan))
        alone = None if self._alone is None else self._alone.allocated(self._of(1, used))
        return claims[0].allocated(self._of(0, used)), alone

    def check_drawn(self, plan: Plan) -> None:
        """Check that what a unit adds to a plan's sums is known, at the size declared by now.

        Raises:
            BudgetError: a step draws more units on average than default numerics are exact for.
        """
        drawn = plan.sample_rate * self.terms.declared_size
        if plan.numerics == "default" and drawn > MAX_DRAWN:
            raise BudgetError(
                f"A step of job {plan.job!r} draws {drawn:,.0f} units on average. What a unit adds"
                f" to sums of default numerics is known for {MAX_DRAWN:,}. Use a smaller"
                " privacy.sample_rate, or privacy.numerics = 'strict'."
            )

    def _refusal(self, plan: Plan) -> str:
        if isinstance(self.terms.rule, PlanRule):
            held = ", ".join(map(repr, self.accounts)) or "one that was lost"
            return (
                "Under the rule 'plan' this ledger holds one plan for life, that of job"
                f" {held}, and job {plan.job!r} would be another. Stopped or finished slots stay"
                " charged. Adding records does not make a fresh budget."
            )
        allocated = f"ε = {self.epsilon_allocated:.3f}"
        if self.epsilon_alone_allocated is not None:
            allocated += f", and alone ε = {self.epsilon_alone_allocated:.3f},"
        return (
            f"{plan.steps} steps at rate {plan.sample_rate:g} and noise {plan.noise_multiplier:g}"
            f" are more than what is left under the rule {self.terms.rule.name!r}: {allocated} is"
            f" allocated of the budget {budgets(self.terms)}. Use more noise, a lower rate or fewer"
            " steps, or close plans that will not go on."
        )

    @property
    def limit(self) -> Amounts:
        """All that plans may take, in the rule's currency: of the claim with trust, then alone."""
        return limit_of(self.terms)

    @property
    def _sizes(self) -> tuple[int, float]:
        return self.terms.declared_size, self.terms.delta

    @property
    def is_full(self) -> bool:
        """Whether the rule takes no further plan, whatever it costs."""
        return isinstance(self.terms.rule, PlanRule) and self.used[0] >= 1

    @property
    def used(self) -> Amounts:
        """The part of `limit` that plans have taken, for each claim as there."""
        return tuple(map(float, self._used))

    def used_by(self, jobs: Iterable[str]) -> Amounts:
        """Return what the plans of some jobs take of the budget now."""
        taken = [Fraction(0)] * len(self.limit)
        for job in jobs:
            self._charge(taken, self.accounts[job], 1)
        return tuple(map(float, taken))

    @property
    def kept(self) -> Amounts:
        """The part of `used` that no closing gives back."""
        kept = list(self._used)
        for account in self.accounts.values():
            if not account.closed:
                self._charge(kept, account, -1)
                self._charge(kept, replace(account, closed="closed"), 1)
        return tuple(map(float, kept))

    def snapshot(self, rows: int) -> Snapshot:
        """Return what plans had taken when there were `rows` rows."""
        return self._snapshots[bisect_right(self._snapshots, rows, key=lambda one: one.rows) - 1]

    @property
    def epsilon_committed(self) -> float:
        """The claim for life, an upper bound; `Rule.guarantee` says what it covers."""
        return self.terms.claims[0].committed(self._of(0, self._used))

    @property
    def epsilon_alone_committed(self) -> float | None:
        """The claim for life if nobody else's noise counts; None without a budget for it."""
        alone = self._alone
        return None if alone is None else alone.committed(self._of(1, self._used))

    @property
    def _alone(self) -> Claim | None:
        return next((claim for claim in self.terms.claims if claim.alone), None)

    @property
    def max_colluding(self) -> int | None:
        """The smallest `max_colluding` of secure sums that the claims are about; None without one.

        The claim with trust is lost as soon as more sites of one sum collude than that sum allows
        for.
        """
        shared = (a.plan.max_colluding for a in self._counted if a.plan.max_colluding is not None)
        return min(shared, default=None)

    @property
    def numerics(self) -> frozenset[str]:
        """The numerics in which plans computed, or may still compute, what the claim is about.

        After a copy was lost, nobody knows what its plans were.
        """
        lost = {UNKNOWN} if self.lost else set()
        return frozenset({a.plan.numerics for a in self._counted} | lost)

    @property
    def at_ticks(self) -> bool:
        """Whether all replies that the claim is about left, and will leave, at public ticks."""
        return not self.lost and all(a.plan.ticks for a in self._counted)

    @property
    def _counted(self) -> list[Account]:
        """The plans that released something, or still may."""
        return [a for a in self.accounts.values() if a.reserved or a.closed != "closed"]

    @property
    def epsilon_allocated(self) -> float:
        """An upper bound over the plans accepted so far, as the rule charges them."""
        return self.terms.claims[0].allocated(self._of(0, self._used))

    @property
    def epsilon_alone_allocated(self) -> float | None:
        """`epsilon_allocated` if nobody else's noise counts; None without a budget for it."""
        alone = self._alone
        return None if alone is None else alone.allocated(self._of(1, self._used))

    @property
    def epsilon_spent(self) -> float:
        """An upper bound over the reserved slots only; `SPENT` says what it is worth.

        After a copy was lost, nobody knows which slots were reserved, and all that is allocated
        counts.
        """
        spent = self.terms.claims[0].spent(self.accounts.values())
        return max(spent, self.epsilon_allocated) if self.lost else spent

    @property
    def epsilon_alone_spent(self) -> float | None:
        """`epsilon_spent` if nobody else's noise counts; None without a budget for it."""
        alone, allocated = self._alone, self.epsilon_alone_allocated
        if alone is None or allocated is None:
            return None
        spent = alone.spent(self.accounts.values())
        return max(spent, allocated) if self.lost else spent

    @property
    def is_over(self) -> bool:
        """Whether plans have taken more than the limit.

        If no copy was lost, only a later accountant's digits can be above it.
        """
        most = 1 + 1e-9 if self.lost else 1.01
        return any(used > most * limit for used, limit in zip(self.used, self.limit, strict=True))

    @property
    def guarantee(self) -> str:
        """What `epsilon_committed` covers, in words."""
        if self.is_over:
            return (
                f"NOT KEPT: copies of the ledger were used by turns and took {self.used} of"
                f" {self.limit} that the rule has; the figure is their sum, at the sum of their δ"
            )
        return self.terms.rule.guarantee

    def slots(self, job: str) -> list[tuple[int, bool]]:
        """Return the reserved slots of a job in order, each with whether it was released."""
        return sorted((s, (j, s) in self.releases) for j, s in self.requests if j == job)

    def figures(self) -> dict[str, Any]:
        """Return what the rows add up to, each number with what it means. Public."""
        released = Counter(job for job, _ in self.releases)
        return {
            **asdict(self.terms),
            "rule": self.terms.as_row()["rule"],
            "distinct": [{"other": other, "by": by} for other, by in self.distinct],
            **{figure: getattr(self, figure) for figure in EPSILONS},
            "used": list(self.used),
            "means": {
                "epsilon_spent": SPENT,
                "epsilon_allocated": ALLOCATED,
                "epsilon_committed": self.guarantee,
                **({} if self._alone is None else _means_alone(self.guarantee)),
            },
            "plans": [
                {
                    **asdict(account.plan),
                    "reserved": account.reserved,
                    "released": released[job],
                    "closed": account.closed,
                    "takes": list(self.used_by([job])),
                }
                for job, account in self.accounts.items()
            ],
        }


def limit_of(terms: Terms) -> Amounts:
    """Return all that plans may take under these terms; see `History.limit`."""
    return tuple(amount for claim in terms.claims for amount in claim.limit)


def budgets(terms: Terms) -> str:
    """Return the budget, and the second one where there is one."""
    second = "" if terms.budget_alone is None else f", and alone {terms.budget_alone:g}"
    return f"{terms.budget:g}{second}"


def _means_alone(guarantee: str) -> dict[str, str]:
    """Return what the figures of the claim alone cover."""
    covers = {"spent": SPENT, "allocated": ALLOCATED, "committed": guarantee}
    return {f"epsilon_alone_{key}": f"{ALONE}: {text}" for key, text in covers.items()}


def _fields(body: object) -> dict[str, Any]:
    """Return the fields of a row.

    Raises:
        ValueError: its body has no fields.
    """
    if not isinstance(body, dict):
        raise ValueError("a row has no fields")
    return {key: value for key, value in body.items() if key != "at"}
