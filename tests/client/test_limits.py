"""What a site's administrator allows bounds the plan, whatever a server proposes."""

from __future__ import annotations

from typing import Any

import pytest

from fedpriv.config.job import LoraSection, ModelSection, PrivacySection
from fedpriv.errors import BudgetError, ProtocolError
from fedpriv.privacy.accountant import epsilon_upper
from fedpriv.privacy.ledger import Terms
from fedpriv.privacy.rules import SumRule
from fedpriv.protocol import Proposal
from fedpriv_client.limits import Limits

BASE = "sha256:" + "a" * 64
TERMS = Terms("0" * 32, 24, "record", 1, 1e-3, 6.0, simulated=True)
PRIVACY = PrivacySection(epsilon=5.0, delta=1e-3, sample_rate=0.5, max_records_per_unit=1)
PROPOSAL = Proposal(
    job_id="job-1",
    method="dp-lora",
    steps=4,
    seed=0,
    fields=("text",),
    model=ModelSection(max_length=32),
    lora=LoraSection(),
    privacy=PRIVACY,
    base_digest=BASE,
    vector_digest=BASE,
)


def limits(**changes: Any) -> Limits:
    return Limits(**{"per_job": 6.0, "base_digest": BASE, **changes})


def proposing(**changes: Any) -> Proposal:
    return PROPOSAL.model_copy(update={"privacy": PRIVACY.model_copy(update=changes)})


def test_the_noise_is_calibrated_to_the_smaller_epsilon() -> None:
    for cap, expected in ((6.0, 5.0), (2.0, 2.0)):
        plan = limits(per_job=cap).plan(PROPOSAL, TERMS)
        epsilon = epsilon_upper([plan.event()], 1e-3)
        assert 0.97 * expected < epsilon <= expected


def test_the_sites_delta_counts_not_the_servers() -> None:
    noise = [limits().plan(proposing(delta=d), TERMS).noise_multiplier for d in (0.9, 1e-9)]
    assert noise[0] == noise[1]


def test_a_plan_is_calibrated_at_its_share_of_delta() -> None:
    terms = Terms("0" * 32, 24, "record", 1, 1e-3, 6.0, simulated=True, rule=SumRule(1e-4))
    plan = limits().plan(PROPOSAL, terms)
    assert 0.97 * 5.0 < epsilon_upper([plan.event()], 1e-4) <= 5.0


def test_a_minimum_of_noise_holds_whatever_is_proposed() -> None:
    assert limits(min_noise=7.0).plan(PROPOSAL, TERMS).noise_multiplier == 7.0


def test_a_plan_is_what_was_proposed() -> None:
    plan = limits().plan(PROPOSAL, TERMS)
    assert (plan.job, plan.method, plan.sample_rate, plan.steps) == ("job-1", "dp-lora", 0.5, 4)
    assert (plan.clip_norm, plan.numerics) == (PRIVACY.clip_norm, "default")
    assert plan.proposal == PROPOSAL.digest()


@pytest.mark.parametrize(
    ("exact", "less", "error", "words"),
    [
        ({"max_rate": 0.5}, {"max_rate": 0.4}, BudgetError, "rate of 0.5"),
        ({"max_steps": 4}, {"max_steps": 3}, BudgetError, "4 steps"),
        ({"max_length": 32}, {"max_length": 31}, ProtocolError, "32 is more than this site"),
        ({"methods": ("dp-lora",)}, {"methods": ()}, ProtocolError, "not allowed here"),
        ({"labels": ()}, {"labels": ("no", "yes")}, ProtocolError, "not this site's labels"),
        ({"numerics": ("default",)}, {"numerics": ("strict",)}, ProtocolError, "numerics"),
        ({"base_digest": BASE}, {"base_digest": BASE[:-1] + "b"}, ProtocolError, "base model"),
    ],
)
def test_what_a_site_does_not_allow_is_refused(
    exact: Any, less: Any, error: Any, words: str
) -> None:
    limits(**exact).plan(PROPOSAL, TERMS)
    with pytest.raises(error, match=words):
        limits(**less).plan(PROPOSAL, TERMS)


@pytest.mark.parametrize("change", [{"unit": "patient"}, {"max_records_per_unit": 2}])
def test_another_unit_than_the_ledgers_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=r"privacy\.unit"):
        limits().plan(proposing(**change), TERMS)
