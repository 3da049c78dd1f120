"""What looks cost a site: ε of a job with looks, and without them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedpriv.dossier.facts import Price
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.protocol import MAX_EPSILON, Proposal
from fedpriv.report.budget import BudgetReport

DIGITS = 1e-6  # share of ε by which the same steps may differ from machine to machine


def prices(proposal: Proposal, reports: Mapping[str, BudgetReport]) -> list[Price]:
    """Compute what the looks of a job cost each site, at the δ of its ledger.

    All of a site's steps have the same noise.
    """
    if proposal.evaluation is None:
        return []
    found = []
    for name, report in sorted(reports.items()):
        kinds = {(event.sample_rate, event.noise_multiplier) for event in report.events}
        if len(kinds) != 1:
            continue
        [(rate, noise)] = kinds
        whole, part = (
            epsilon_upper([Event(rate, noise, steps)], report.delta)
            for steps in (proposal.steps, proposal.training_steps)
        )
        if whole <= MAX_EPSILON:
            found.append(Price(site=name, epsilon=whole, without=part))
    return found


def same_prices(stated: Sequence[Price], computed: Sequence[Price]) -> bool:
    """Tell whether prices are of the same sites, and differ at most in a machine's last digits."""
    return [one.site for one in stated] == [one.site for one in computed] and all(
        math.isclose(one.epsilon, other.epsilon, rel_tol=DIGITS)
        and math.isclose(one.without, other.without, rel_tol=DIGITS)
        for one, other in zip(stated, computed, strict=True)
    )
