"""What a site would answer, without asking it: the same as it does answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.looks import LooksSection
from fedpriv.errors import ConfigError, FedprivError, LedgerError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import Proposal
from fedpriv.report.figures import upper
from fedpriv_client.check import check_proposal, read_proposal
from fedpriv_client.limits import Limits
from fedpriv_client.site import Site
from fedpriv_client.site_settings import SiteSettings
from tests.client.tried import Tried

Make = Callable[..., Any]
SAME = "The job's model: assumed to be the one that this site allows."


@pytest.fixture(scope="module")
def pool() -> WorkerPool:
    return WorkerPool()


@pytest.fixture
def proposal(pool: WorkerPool, model_folder: Make) -> Proposal:
    recipe = ModelRecipe(
        ModelSection(name=str(model_folder("llama")), max_length=32),
        LoraSection(r=2, target_modules=("q_proj",)),
        0,
        ComputeSection(device="cpu"),
    )
    with pool.borrow(recipe) as worker:
        return Proposal(
            job_id="job-1",
            method="dp-lora",
            steps=4,
            seed=0,
            fields=("text",),
            model=recipe.model,
            lora=recipe.lora,
            privacy=PrivacySection(
                epsilon=5.0, delta=1e-3, sample_rate=0.5, max_records_per_unit=1
            ),
            base_digest=worker.base.digest,
            vector_digest=worker.vector.digest,
        )


@pytest.fixture
def settings(tmp_path: Path, proposal: Proposal) -> SiteSettings:
    terms = Terms("0" * 32, 24, "record", 1, 1e-3, 6.0, simulated=False)
    (tmp_path / "notes.jsonl").write_text(
        "".join(json.dumps({"text": f"note {i}"}) + "\n" for i in range(24))
    )
    made = SiteSettings(
        name="clinic",
        data=tmp_path / "notes.jsonl",
        columns={"text": "text"},
        state_dir=tmp_path / "state",
        ledger=tmp_path / "ledger.db",
        terms=terms,
        limits=Limits(per_job=6.0, base_digest=proposal.base_digest),
        compute=ComputeSection(device="cpu"),
        lasting=True,
        model=proposal.model.name,
    )
    Ledger.create(made.ledger, terms).close()
    return made


def answer(settings: SiteSettings, proposal: Proposal, pool: WorkerPool) -> Any:
    """What the site itself says: its offer, or its reason against one."""
    site = Site(settings, pool, lambda job, slot: SystemCsprng())
    try:
        return site.consider(proposal)
    except FedprivError as error:
        return str(error)
    finally:
        site.close()


def tried(settings: SiteSettings, proposal: Proposal, pool: WorkerPool | None = None) -> Tried:
    return Tried(check_proposal(settings, proposal, pool))


def test_it_says_what_the_site_will_say(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool
) -> None:
    before = settings.ledger.read_bytes()
    found = tried(settings, proposal, pool)
    assert settings.ledger.read_bytes() == before
    assert (found.refusals, found.unchecked) == ([], [SAME])
    offer = answer(settings, proposal, pool)
    epsilon = upper(offer.epsilon)
    price = f"ε = {epsilon} by itself, {epsilon} of 6 with earlier jobs. It would"
    assert found.cost.startswith(
        f"4 steps at rate 0.5 with noise {offer.noise_multiplier:.3f}: {price}"
    )
    assert "look" not in found.cost and "secure sum" not in found.cost
    assert "waits until" not in found.cost and "records of 32 tokens at once" in found.step
    asking = tried(replace(settings, ask=True), proposal)
    assert "waits until somebody here approves it" in asking.cost and not asking.step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "changes"),
    [
        ({"methods": ("pe-sgd",)}, {}),
        ({"max_r": 1}, {}),
        ({"max_trainable": 255}, {}),
        ({"targets": ("v_proj",)}, {"lora": LoraSection(r=2)}),
        ({"targets": ("v_proj",)}, {}),
        ({}, {"fields": ("prompt", "completion")}),
        ({"per_job": 7.0}, {"privacy": PrivacySection(
            epsilon=7.0, delta=1e-3, sample_rate=0.5, max_records_per_unit=1)}),
    ],
)  # fmt: skip
def test_it_refuses_for_the_reason_that_the_site_has(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool, limits: Any, changes: Any
) -> None:
    settings = replace(settings, limits=replace(settings.limits, **limits))
    proposal = proposal.model_copy(update=changes)
    found = tried(settings, proposal, pool)
    assert found.refusals == [answer(settings, proposal, pool)]
    assert not found.cost and not found.step


def test_it_says_how_many_steps_look(settings: SiteSettings, proposal: Proposal) -> None:
    """What they cost is said by `fedpriv plan FILE`."""
    asked = proposal.model_copy(
        update={"steps": proposal.steps + 4, "evaluation": LooksSection(looks=2, slots=2)}
    )
    [refusal] = tried(settings, asked).refusals
    assert "allow.evaluation" in refusal
    limits = replace(settings.limits, evaluation=True, held_out=5)
    found = tried(replace(settings, limits=limits), asked)
    assert found.refusals == []
    assert found.cost.startswith(f"{proposal.steps + 4} steps at rate")
    assert "4 of the steps look at held-out records" in found.cost


def test_without_the_model_it_says_so(settings: SiteSettings, proposal: Proposal) -> None:
    found = tried(settings, proposal)
    assert found.refusals == [] and not found.step
    assert found.unchecked == [SAME, "The model: it was not loaded."]


def test_all_reasons_are_told_at_once(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool
) -> None:
    settings = replace(settings, limits=replace(settings.limits, max_r=1, max_steps=1))
    found = tried(settings, proposal.model_copy(update={"fields": ("x",)}), pool)
    assert len(found.refusals) == 3
    assert "The model: it was not loaded." in found.unchecked  # what is refused anyway


def test_while_the_client_runs_the_ledger_is_not_looked_at(
    settings: SiteSettings, proposal: Proposal
) -> None:
    with Ledger.open(settings.ledger):
        found = tried(settings, proposal)
    assert found.refusals == [] and found.cost.endswith("by itself")
    assert any("is in use" in text for text in found.unchecked)


def test_a_ledger_that_the_site_would_not_start_with_is_an_error(
    settings: SiteSettings, proposal: Proposal
) -> None:
    with pytest.raises(ConfigError, match=r"budget\.epsilon"):
        tried(replace(settings, terms=replace(settings.terms, budget=9.0)), proposal)
    with pytest.raises(LedgerError, match="no such"):
        tried(replace(settings, ledger=settings.ledger.with_name("none.db")), proposal)


def test_a_federation_file_stands_for_its_proposal(
    settings: SiteSettings, pool: WorkerPool, federation: Make, tmp_path: Path
) -> None:
    read = read_proposal(federation(rounds=4), settings)
    assert (read.steps, read.lora.r, read.privacy.sample_rate) == (4, 2, 0.3)
    found = tried(settings, read, pool)
    assert (found.refusals, found.unchecked) == ([], [SAME])
    assert "records of 32 tokens at once" in found.step
    with pytest.raises(ConfigError, match=r"none\.toml"):
        read_proposal(tmp_path / "none.toml", settings)
