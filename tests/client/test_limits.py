"""What a site's administrator allows bounds the plan, whatever a server proposes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.config.looks import LooksSection
from fedpriv.errors import LimitError, ProtocolError
from fedpriv.files import canonical_json, sha256
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.models.digest import quantised_digest
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.ledger import Terms
from fedpriv.privacy.ledger.rules import SumRule
from fedpriv.privacy.usual import MAX_DRAWN
from fedpriv.protocol import Proposal, Refusal, SharedNoise
from fedpriv.secure_sum.roster import Roster, RosterEntry
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
    lora=LoraSection(r=8),
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


def sharing(sites: int = 3) -> tuple[Proposal, Roster, Terms]:
    """A proposal of a secure sum, of which one site may collude, and what it needs at a site."""
    keys = [
        Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex() for _ in range(sites)
    ]
    roster = Roster.of(RosterEntry(name=f"s{at}", public_key=key) for at, key in enumerate(keys))
    noise = calibrate_noise(5.0, 1e-3, 0.5, 4)
    shared = SharedNoise(max_colluding=1, sites=sites, roster=roster.digest, noise_multiplier=noise)
    terms = Terms("0" * 32, 24, "record", 1, 1e-3, 6.0, simulated=True, budget_alone=90.0)
    return PROPOSAL.model_copy(update={"shared": shared}), roster, terms


def test_both_claims_of_a_job_have_a_limit() -> None:
    """Each holds exactly, and by default the one alone is the ledger's second budget."""
    proposal, roster, terms = sharing()
    plan = limits(roster=roster).plan(proposal, terms)
    alone = epsilon_upper([plan.alone.event()], 1e-3)
    assert alone > 6.0 >= epsilon_upper([plan.event()], 1e-3)
    assert limits(roster=roster, per_job_alone=alone).plan(proposal, terms) == plan
    less = math.nextafter(alone, 0)
    with pytest.raises(LimitError, match=r"worked with the server.*\(budget\.per_job_alone\)"):
        limits(roster=roster, per_job_alone=less).plan(proposal, terms)


@pytest.mark.parametrize("sites", [3, 5, 64])
def test_a_sites_own_share_of_the_noise_has_a_limit(sites: int) -> None:
    proposal, roster, terms = sharing(sites)
    own = limits(roster=roster).plan(proposal, terms).alone.noise_multiplier
    assert own <= calibrate_noise(5.0, 1e-3, 0.5, 4) / math.sqrt(sites - 1)
    limits(roster=roster, min_noise_alone=own).plan(proposal, terms)
    more = math.nextafter(own, math.inf)
    with pytest.raises(LimitError, match=r"\(allow\.min_noise_alone\)"):
        limits(roster=roster, min_noise_alone=more).plan(proposal, terms)


def test_a_local_job_has_no_share() -> None:
    plan = limits(min_noise_alone=50.0, per_job_alone=0.1).plan(PROPOSAL, TERMS)
    assert plan == limits().plan(PROPOSAL, TERMS)


def test_a_plan_is_what_was_proposed() -> None:
    plan = limits().plan(PROPOSAL, TERMS)
    assert (plan.job, plan.method, plan.sample_rate, plan.steps) == ("job-1", "dp-lora", 0.5, 4)
    assert (plan.clip_norm, plan.numerics) == (PRIVACY.clip_norm, "default")
    assert plan.proposal == PROPOSAL.digest()


@pytest.mark.parametrize(
    ("exact", "less", "limit", "words"),
    [
        ({"max_rate": 0.5}, {"max_rate": 0.4}, "max-rate", "rate of 0.5"),
        ({"max_steps": 4}, {"max_steps": 3}, "max-steps", "4 steps"),
        ({"max_length": 32}, {"max_length": 31}, "max-length", "32 is more than this site"),
        ({"methods": ("dp-lora",)}, {"methods": ()}, "methods", "not allowed here"),
        ({"labels": ()}, {"labels": ("no", "yes")}, "labels", "not this site's labels"),
        ({"numerics": ("default",)}, {"numerics": ("strict",)}, "numerics", "numerics"),
        ({"base_digest": BASE}, {"base_digest": BASE[:-1] + "b"}, "model-digest", "base model"),
        ({"max_r": 8}, {"max_r": 7}, "max-r", "8 is more than this site allows, 7"),
    ],
)
def test_what_a_site_does_not_allow_is_refused(
    exact: Any, less: Any, limit: str, words: str
) -> None:
    """Each limit has its own code, and the code is all that a coordinator hears of it."""
    limits(**exact).plan(PROPOSAL, TERMS)
    with pytest.raises(LimitError, match=words) as caught:
        limits(**less).plan(PROPOSAL, TERMS)
    assert Refusal.of(caught.value) == Refusal(refused=limit, kind="LimitError")


def test_a_look_draws_no_more_than_default_numerics_are_proven_for() -> None:
    looks = PROPOSAL.model_copy(update={"evaluation": LooksSection(looks=1)})
    strict = looks.privacy.model_copy(update={"numerics": "strict"})
    most = 2 * MAX_DRAWN  # of which half is drawn
    assert not [*limits(evaluation=True, held_out=most).refusals(looks, TERMS)]
    [refused] = limits(evaluation=True, held_out=most + 2).refusals(looks, TERMS)
    assert "would draw 100,001 units" in str(refused)
    exact = looks.model_copy(update={"privacy": strict})
    assert not [*limits(evaluation=True, held_out=most + 2).refusals(exact, TERMS)]


def test_a_job_begins_at_the_adapter_that_a_site_names_or_at_none() -> None:
    other = BASE[:-1] + "b"
    model = PROPOSAL.model.model_copy(update={"begin": "somewhere"})
    asked = PROPOSAL.model_copy(update={"model": model, "begin_digest": BASE})
    for allowed in (None, BASE):
        limits(begin_digest=allowed).plan(PROPOSAL, TERMS)
    limits(begin_digest=BASE).plan(asked, TERMS)
    for allowed in (None, other):
        with pytest.raises(ProtocolError, match=r"model\.begin: .*allow\.begin_digest"):
            limits(begin_digest=allowed).plan(asked, TERMS)


@pytest.mark.parametrize(
    ("asked", "allowed", "foreign"),
    [
        ("auto", ("q_proj",), None),  # only a loaded model tells
        (("q_proj", "v_proj"), (), None),
        (("q_proj", "v_proj"), ("v_proj", "q_proj", "o_proj"), None),
        (("q_proj", "lm_head"), ("q_proj",), "lm_head"),
        (("layers.0.self_attn.q_proj",), ("q_proj",), None),
        (("q_proj.lm_head",), ("q_proj",), "lm_head"),
        (("Q_PROJ",), ("q_proj",), "Q_PROJ"),
    ],
)
def test_only_named_layers_may_get_an_adapter(asked: Any, allowed: Any, foreign: Any) -> None:
    proposal = PROPOSAL.model_copy(update={"lora": LoraSection(target_modules=asked)})
    if foreign is None:
        limits(targets=allowed).plan(proposal, TERMS)
    else:
        with pytest.raises(ProtocolError, match=f"target_modules: {foreign} may get no adapter"):
            limits(targets=allowed).plan(proposal, TERMS)


def test_layers_that_are_trained_whole_are_layers_too(make_worker: Any) -> None:
    asked = LoraSection(target_modules=("q_proj",), modules_to_save=("lm_head",))
    with pytest.raises(ProtocolError, match="lm_head may get no adapter"):
        limits(targets=("q_proj",)).plan(PROPOSAL.model_copy(update={"lora": asked}), TERMS)
    worker = make_worker("llama", targets=("q_proj",), modules_to_save=("lm_head",))
    limits(targets=("q_proj", "lm_head")).check_trained(worker.vector)
    with pytest.raises(ProtocolError, match="lm_head may get no adapter"):
        limits(targets=("q_proj",)).check_trained(worker.vector)


def test_all_linear_layers_are_known_when_the_model_is(make_worker: Any) -> None:
    asked = PROPOSAL.model_copy(update={"lora": LoraSection(target_modules="all-linear")})
    limits(targets=("q_proj",)).plan(asked, TERMS)
    worker = make_worker("llama", targets="all-linear")
    with pytest.raises(ProtocolError, match="down_proj"):
        limits(targets=("q_proj",)).check_trained(worker.vector)


@pytest.mark.parametrize("targets", ["auto", ("q_proj", "v_proj")])
def test_what_a_loaded_model_trains_is_bounded(make_worker: Any, targets: Any) -> None:
    worker = make_worker("llama", r=2, targets=targets)
    size = worker.vector.size
    limits(max_trainable=size, targets=("q_proj", "v_proj")).check_trained(worker.vector)
    with pytest.raises(ProtocolError, match=f"train {size:,} parameters, more than"):
        limits(max_trainable=size - 1).check_trained(worker.vector)
    with pytest.raises(ProtocolError, match="v_proj may get no adapter here, only q_proj"):
        limits(targets=("q_proj",)).check_trained(worker.vector)


def test_a_new_head_counts_and_is_no_layer_with_an_adapter(make_worker: Any) -> None:
    worker = make_worker("llama", task="classification", r=1, targets=("q_proj",))
    assert any("score" in name for name in worker.vector.names)
    limits(targets=("q_proj",)).check_trained(worker.vector)
    with pytest.raises(ProtocolError, match="parameters"):
        limits(max_trainable=worker.vector.size - 1).check_trained(worker.vector)


def test_all_reasons_of_a_refusal_are_told() -> None:
    strict = limits(max_r=1, max_steps=1, methods=(), targets=("x",))
    proposal = PROPOSAL.model_copy(update={"lora": LoraSection(target_modules=("q_proj",))})
    told = [str(error) for error in strict.refusals(proposal, TERMS)]
    assert len(told) == 4
    for words in ("method", "lora.r", "4 steps", "target_modules"):
        assert any(words in text for text in told)
    assert strict.calibrated(proposal, TERMS) == limits().plan(proposal, TERMS)


@pytest.mark.parametrize("change", [{"unit": "patient"}, {"max_records_per_unit": 2}])
def test_another_unit_than_the_ledgers_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=r"privacy\.unit"):
        limits().plan(proposing(**change), TERMS)


@pytest.mark.parametrize("bits", ["8bit", "4bit"])
def test_a_job_that_quantises_the_allowed_base_is_allowed(bits: Any) -> None:
    """By the digest of the base in full, or by that of the base in those bits alone."""
    quantised = quantised_digest(BASE, bits)
    model = PROPOSAL.model.model_copy(update={"quantize": bits})
    proposal = PROPOSAL.model_copy(update={"model": model, "base_digest": quantised})
    for allowed in (BASE, quantised):
        limits(base_digest=allowed).plan(proposal, TERMS)
    for allowed in (BASE[:-1] + "b", quantised_digest(BASE, "4bit" if bits == "8bit" else "8bit")):
        with pytest.raises(ProtocolError, match="not the base model this site allows"):
            limits(base_digest=allowed).plan(proposal, TERMS)
    with pytest.raises(ProtocolError, match="not the base model this site allows"):
        limits(base_digest=quantised).plan(PROPOSAL, TERMS)
    in_name_only = PROPOSAL.model_copy(update={"base_digest": quantised})
    with pytest.raises(ProtocolError, match="not the base model this site allows"):
        limits().plan(in_name_only, TERMS)


def test_how_a_base_is_kept_is_part_of_what_is_proposed() -> None:
    """And a job in full is known by the digest that it had before there was another."""
    model = PROPOSAL.model.model_copy(update={"quantize": "4bit"})
    quantised = PROPOSAL.model_copy(update={"model": model})
    assert quantised.digest() != PROPOSAL.digest()
    found = {PROPOSAL.digest()}
    for how in ("continued", "merged"):
        model = PROPOSAL.model.model_copy(update={"begin": "adapter", "begin_as": how})
        for digest in (BASE, BASE[:-1] + "b"):
            begun = PROPOSAL.model_copy(update={"model": model, "begin_digest": digest})
            found.add(begun.digest())
    assert len(found) == 5
    fields = PROPOSAL.model_dump(mode="json")
    del fields["groups"], fields["model"]["quantize"]
    del fields["begin_digest"], fields["model"]["begin"], fields["model"]["begin_as"]
    assert sha256(canonical_json(fields)) == PROPOSAL.digest()
