"""What a site would answer to a job with a secure sum: both figures, by its own roster."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import ConfigError
from fedpriv.models.stored import digest_of
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.private_training.config import ComputeSection
from fedpriv.report.figures import upper
from fedpriv.secure_sum.roster import Roster, write
from fedpriv_client.check import check_proposal, read_proposal
from fedpriv_client.limits import Limits
from fedpriv_client.site_settings import SiteSettings
from tests.client.tried import Tried
from tests.secure_sum.secure_sites import roster_of, sites

Make = Callable[..., Any]


@pytest.fixture
def roster() -> Roster:
    return roster_of(sites("site-0", "site-1", "site-2"))


@pytest.fixture
def job(federation: Make, tmp_path: Path) -> Path:
    """A federation file for the network, whose roster only the coordinator has."""
    file: Path = federation(rounds=3, sites=3)
    shared = '[privacy]\ntrust = "secure-sum"\nroster = "roster.json"\nspare_slots = 1\n'
    lines = file.read_text().replace("[job]\n", '[job]\nengine = "network"\n').splitlines()
    kept = [line for line in lines if not line.startswith(('data = "site', "size"))]
    text = "\n".join(kept).replace("[privacy]\n", shared)
    file.write_text(text + '\n[server]\naddress = "localhost:9"\n')
    return file


@pytest.fixture
def settings(tmp_path: Path, roster: Roster, model_folder: Make) -> SiteSettings:
    terms = Terms("0" * 32, 24, "record", 1, 1e-3, 20.0, simulated=False, budget_alone=90.0)
    made = SiteSettings(
        name="site-0",
        data=tmp_path / "notes.jsonl",
        columns={"text": "note"},
        state_dir=tmp_path / "state",
        ledger=tmp_path / "ledger.db",
        terms=terms,
        limits=Limits(per_job=6.0, base_digest=digest_of(str(model_folder())), roster=roster),
        compute=ComputeSection(device="cpu"),
        lasting=True,
        model=str(model_folder()),
    )
    (tmp_path / "notes.jsonl").write_text(json.dumps({"note": "a"}) + "\n")
    Ledger.create(made.ledger, terms).close()
    return made


def test_a_federation_file_is_checked_with_the_sites_own_roster(
    settings: SiteSettings, job: Path, roster: Roster
) -> None:
    write(job.with_name("roster.json"), roster_of(sites("site-0", "site-1", "other")))
    proposal = read_proposal(job, settings)
    assert proposal.shared is not None
    assert proposal.shared.roster == roster.digest
    assert (proposal.shared.max_colluding, proposal.shared.sites) == (1, 3)
    found = Tried(check_proposal(settings, proposal))
    assert found.refusals == []
    plan = settings.limits.calibrated(proposal, settings.terms)
    epsilon, alone = plan.epsilon(1e-3), epsilon_upper([plan.alone.event()], 1e-3)
    assert plan.steps == 4 and 5.9 < epsilon <= 6.0 < alone
    assert found.cost.startswith("4 steps at rate")
    assert f"ε = {upper(epsilon)} by itself, {upper(epsilon)} of 20 with earlier jobs" in found.cost
    assert "at most 1 of the sites" in found.cost
    assert f"ε = {upper(alone)} by itself, {upper(alone)} of 90 with earlier jobs" in found.cost


def test_a_local_job_says_one_figure(settings: SiteSettings, federation: Make) -> None:
    found = Tried(check_proposal(settings, read_proposal(federation(), settings)))
    assert found.cost.count("by itself") == 1
    assert "secure sum" not in found.cost


def test_without_a_roster_there_is_no_secure_sum(settings: SiteSettings, job: Path) -> None:
    settings = replace(settings, limits=replace(settings.limits, roster=None))
    with pytest.raises(ConfigError, match=r"privacy\.trust.*\[secure_sum\]"):
        read_proposal(job, settings)


@pytest.mark.parametrize(
    ("limits", "terms", "words"),
    [
        ({"max_colluding_at_least": 2}, {}, "allow.max_colluding_at_least"),
        ({"per_job": 3.0}, {}, "(budget.per_job)"),
        ({"per_job_alone": 6.0}, {}, "(budget.per_job_alone)"),
        ({"min_noise": 50.0}, {}, "(allow.min_noise)"),
        ({"min_noise_alone": 50.0}, {}, "(allow.min_noise_alone)"),
        ({}, {"budget_alone": None}, "budget.epsilon_alone"),
    ],
)
def test_it_refuses_for_the_reason_that_the_site_has(
    settings: SiteSettings, job: Path, limits: Any, terms: Any, words: str
) -> None:
    known = replace(settings.terms, **terms)
    settings = replace(
        settings,
        limits=replace(settings.limits, **limits),
        terms=known,
        ledger=settings.ledger.with_name("other.db"),
    )
    Ledger.create(settings.ledger, known).close()
    found = Tried(check_proposal(settings, read_proposal(job, settings)))
    assert any(words in refusal for refusal in found.refusals), found.refusals
    assert not found.cost
