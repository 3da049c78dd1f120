"""The parts of which each ε of a ledger consists, so that any accountant can compute it anew.

A figure of a ledger is a sum of *terms*. A term is a composition of events at a δ. It is computed
numerically, or for a Rényi filter at one order that was fixed before. The ledger's own code is not
used here: `fedpriv verify` checks that both give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.rdp import epsilon_from_rdp, rdp
from fedpriv.privacy.ledger.account import Account
from fedpriv.privacy.ledger.claims import Claim
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, SumRule
from fedpriv.report.budget import figure_names


@dataclass(frozen=True)
class Term:
    """ε at δ of events.

    Attributes:
        order: the order at which Rényi divergences are taken, and at which their sum is converted.
            None for events that were fixed before the first of them was released.
    """

    delta: float
    events: tuple[Event, ...]
    order: int | None = None


@dataclass(frozen=True)
class Figure:
    """A figure of a ledger: the sum of its terms, but at least what somebody stated.

    Attributes:
        name: the field of a budget report that states it.
        stated: a budget that is itself the claim, however much of it was taken; else 0.
    """

    name: str
    terms: tuple[Term, ...]
    stated: float = 0.0

    @property
    def called(self) -> str:
        """What people call it, such as "alone spent"."""
        return self.name.removeprefix("epsilon_").replace("_", " ")

    def value(self, epsilon: Callable[[Term], float]) -> float:
        """Return ε by an accountant.

        Args:
            epsilon: returns the accountant's ε of one term.
        """
        return max(self.stated, fsum(map(epsilon, self.terms)))


def epsilon_of(term: Term) -> float:
    """Return an upper bound of a term's ε by our own accountant."""
    if term.order is None:
        return epsilon_upper(term.events, term.delta)
    curve = fsum(
        float(rdp(event.sample_rate, event.noise_multiplier, (term.order,))[0]) * event.count
        for event in term.events
    )
    return epsilon_from_rdp(np.array([curve]), term.delta, (term.order,))[0] if curve else 0.0


def figures_of(history: History) -> list[Figure]:
    """Return every ε that a report states about a ledger with these rows.

    A ledger that was restored from an older copy has no figures here. Only what was reserved is
    known, and what the lost copy took is one number in its rows.
    """
    if history.lost:
        return []
    return [
        figure
        for claim in history.terms.claims
        for figure in _figures(claim, list(history.accounts.values()))
    ]


def _figures(claim: Claim, accounts: list[Account]) -> Iterator[Figure]:
    spent, within, committed = figure_names(claim.alone)
    charged = [replace(one, plan=one.plan.alone) for one in accounts] if claim.alone else accounts
    allocated = tuple(_allocated(claim, charged))
    reserved = tuple(one.plan.event(one.reserved) for one in charged if one.reserved)
    yield Figure(spent, (Term(claim.delta, reserved),) if reserved else ())
    yield Figure(within, allocated)
    of_one_plan = isinstance(claim.rule, PlanRule) and allocated
    yield Figure(committed, allocated, 0.0 if of_one_plan else claim.budget)


def _allocated(claim: Claim, accounts: list[Account]) -> Iterator[Term]:
    """Yield the terms of the accepted plans, less what the rule gives back for closed plans."""
    rule = claim.rule
    charged = [(one, one.charged(refunds=rule.refunds)) for one in accounts]
    charged = [(account, steps) for account, steps in charged if steps]
    if isinstance(rule, RdpRule):
        events = tuple(account.plan.event(steps) for account, steps in charged)
        if events:
            yield Term(claim.delta, events, rule.order)
        return
    delta = rule.delta_per_plan if isinstance(rule, SumRule) else claim.delta
    for account, _ in charged:
        yield Term(delta, (account.plan.event(),))
