"""What a site would answer, without asking it: the same as it does answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.looks import LooksSection
from fedpriv.errors import ConfigError, FedprivError, LedgerError, ProtocolError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import Proposal
from fedpriv_client.check import check_proposal, read_proposal
from fedpriv_client.doctor import _cost
from fedpriv_client.limits import Limits
from fedpriv_client.site import Site
from fedpriv_client.site_settings import SiteSettings

Make = Callable[..., Any]


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


def test_it_says_what_the_site_will_say(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool
) -> None:
    before = settings.ledger.read_bytes()
    verdict = check_proposal(settings, proposal, pool)
    assert settings.ledger.read_bytes() == before
    assert (verdict.refusals, verdict.unchecked) == ([], [])
    offer = answer(settings, proposal, pool)
    assert verdict.plan is not None and verdict.trained == 256
    assert verdict.plan.noise_multiplier == offer.noise_multiplier
    assert verdict.allocated == offer.epsilon == verdict.epsilon
    assert verdict.budget == offer.budget == 6.0


@pytest.mark.parametrize(
    ("limits", "changes"),
    [
        ({"methods": ("pe-sgd",)}, {}),
        ({"max_r": 1}, {}),
        ({"max_trainable": 255}, {}),
        ({"targets": ("v_proj",)}, {"lora": LoraSection(r=2)}),
        ({"targets": ("v_proj",)}, {}),
        ({}, {"fields": ("prompt", "completion")}),
        ({}, {"vector_digest": "sha256:" + "b" * 64}),
        ({"per_job": 7.0}, {"privacy": PrivacySection(
            epsilon=7.0, delta=1e-3, sample_rate=0.5, max_records_per_unit=1)}),
    ],
)  # fmt: skip
def test_it_refuses_for_the_reason_that_the_site_has(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool, limits: Any, changes: Any
) -> None:
    settings = replace(settings, limits=replace(settings.limits, **limits))
    proposal = proposal.model_copy(update=changes)
    assert check_proposal(settings, proposal, pool).refusals == [answer(settings, proposal, pool)]


def test_it_says_what_looks_cost(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool
) -> None:
    asked = proposal.model_copy(
        update={"steps": proposal.steps + 4, "evaluation": LooksSection(looks=2, slots=2)}
    )
    [refusal] = check_proposal(settings, asked).refusals
    assert "allow.evaluation" in refusal
    limits = replace(settings.limits, evaluation=True, held_out=5)
    verdict = check_proposal(replace(settings, limits=limits), asked)
    assert verdict.refusals == [] and verdict.look_steps == 4
    assert verdict.without_looks is not None and verdict.epsilon is not None
    assert 0 < verdict.without_looks < verdict.epsilon
    assert verdict.plan is not None and verdict.plan.steps == proposal.steps + 4
    assert "4 of the steps look at held-out records" in _cost(verdict)
    assert check_proposal(settings, proposal).without_looks is None


def test_without_the_model_it_says_so(settings: SiteSettings, proposal: Proposal) -> None:
    verdict = check_proposal(settings, proposal)
    assert verdict.refusals == [] and verdict.trained is None
    assert verdict.unchecked == ["The model: it was not loaded."]


def test_all_reasons_are_told_at_once(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool
) -> None:
    settings = replace(settings, limits=replace(settings.limits, max_r=1, max_steps=1))
    verdict = check_proposal(settings, proposal.model_copy(update={"fields": ("x",)}), pool)
    assert len(verdict.refusals) == 3
    assert verdict.trained is None  # what is refused anyway is not loaded


def test_while_the_client_runs_the_ledger_is_not_looked_at(
    settings: SiteSettings, proposal: Proposal
) -> None:
    with Ledger.open(settings.ledger):
        verdict = check_proposal(settings, proposal)
    assert verdict.allocated is None and verdict.refusals == []
    assert any("is in use" in text for text in verdict.unchecked)


def test_a_ledger_that_the_site_would_not_start_with_is_an_error(
    settings: SiteSettings, proposal: Proposal
) -> None:
    with pytest.raises(ConfigError, match=r"budget\.epsilon"):
        check_proposal(replace(settings, terms=replace(settings.terms, budget=9.0)), proposal)
    with pytest.raises(LedgerError, match="no such"):
        check_proposal(replace(settings, ledger=settings.ledger.with_name("none.db")), proposal)


def test_a_federation_file_stands_for_its_proposal(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool, federation: Make
) -> None:
    read = read_proposal(federation(rounds=4), settings)
    assert (read.steps, read.lora.r, read.privacy.sample_rate) == (4, 2, 0.3)
    verdict = check_proposal(settings, read, pool)
    assert verdict.refusals == []
    assert verdict.unchecked == ["The job's model: taken to be the one that this site allows."]
    assert verdict.trained is not None and verdict.trained > 256  # auto: q_proj and v_proj


def test_a_proposal_is_read_as_it_was_sent(
    settings: SiteSettings, proposal: Proposal, tmp_path: Path
) -> None:
    file = tmp_path / "proposal.json"
    file.write_text(proposal.model_dump_json())
    assert read_proposal(file, settings) == proposal
    file.write_text("{}")
    with pytest.raises(ProtocolError, match=r"Proposal\.job_id"):
        read_proposal(file, settings)
    with pytest.raises(ConfigError, match=r"none\.json: can't be read"):
        read_proposal(tmp_path / "none.json", settings)
