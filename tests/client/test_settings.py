"""From a site's own file to a site that answers by it, and by nothing that a server says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_site
from fedpriv.config.site_file import SiteFile
from fedpriv.errors import ConfigError, LedgerCorruptError, LedgerError, LimitError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.ledger.rules import RdpRule
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import Proposal, StepRequest
from fedpriv_client.init import init_site
from fedpriv_client.report import write_budget_report
from fedpriv_client.settings import ledger_path, ledgers, site_settings, terms_of
from fedpriv_client.site import Site

Make = Callable[..., Any]


class Administrator:
    """Who has a site's file, and types commands."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.file, self.model = folder, folder / "site.toml", model
        rows = [{"note": f"note {i} fever {i * i}"} for i in range(24)]
        (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.pool = WorkerPool()
        self.lora = LoraSection(r=2, target_modules=("q_proj",))
        self.file.write_text(
            f"""
            [site]
            name = "clinic"
            [server]
            address = "fed.example.org:8443"
            ca = "ca.crt"
            key = "site.key"
            [data]
            path = "notes.jsonl"
            columns = {{ text = "note" }}
            size = 24
            max_records_per_unit = 1
            [budget]
            epsilon = 10.0
            delta = 1e-3
            per_job = 4.0
            [allow]
            model = "{model}"
            model_digest = "{self.worker_digest("base")}"
            max_r = 2
            max_trainable = 256
            targets = ["q_proj"]
            [compute]
            device = "cpu"
            """
        )

    def read(self, *overrides: str) -> SiteFile:
        return load_site(self.file, overrides)

    def init(self, *overrides: str, **options: Any) -> str:
        return init_site(self.read(*overrides), self.file, **options)

    def start(self, *overrides: str) -> Site:
        settings = site_settings(self.read(*overrides), self.file)
        return Site(settings, self.pool, lambda job, slot: SystemCsprng())

    def worker_digest(self, of: str) -> str:
        recipe = ModelRecipe(
            ModelSection(name=str(self.model), max_length=32),
            self.lora,
            0,
            ComputeSection(device="cpu"),
        )
        with self.pool.borrow(recipe) as worker:
            return str(getattr(worker, of).digest)

    def proposal(self, job: str = "job-1", **changes: Any) -> Proposal:
        """From a server that calls the model by a name of its own."""
        return Proposal(
            job_id=job,
            method="dp-lora",
            steps=4,
            seed=0,
            fields=("text",),
            model=ModelSection(name="/etc", max_length=32),
            lora=self.lora,
            privacy=PrivacySection(
                epsilon=8.0, delta=1e-3, sample_rate=0.5, max_records_per_unit=1
            ),
            base_digest=self.worker_digest("base"),
            vector_digest=self.worker_digest("vector"),
        ).model_copy(update=changes)


@pytest.fixture
def admin(tmp_path: Path, model_folder: Make) -> Administrator:
    return Administrator(tmp_path, model_folder("llama"))


@pytest.mark.slow
def test_a_file_becomes_a_site_that_answers_by_it(admin: Administrator) -> None:
    dataset_id = admin.init()
    site = admin.start()
    assert site.ledger.terms == terms_of(admin.read(), dataset_id)
    assert not site.ledger.terms.simulated and site.ledger.terms.private
    offer = site.consider(admin.proposal())
    by_itself = epsilon_upper([Event(0.5, offer.noise_multiplier, 4)], 1e-3)
    assert 0.97 * 4.0 < by_itself <= 4.0 < offer.epsilon  # the ledger's filter is dearer
    assert (offer.dataset_id, offer.budget, offer.declared_size) == (dataset_id, 10.0, 24)
    with admin.pool.borrow(site._job.recipe) as worker:  # type: ignore[union-attr]
        vector = worker.vector.read()
    reply, _ = site.step(StepRequest(job_id="job-1", slot=0), vector)
    assert 0 < reply.epsilon_spent < reply.epsilon_committed == 10.0
    with pytest.raises(LimitError, match="100001 steps"):
        site.consider(admin.proposal(steps=100_001, job="job-2"))
    site.close()


def test_the_only_ledger_needs_no_name(admin: Administrator) -> None:
    with pytest.raises(LedgerError, match=r"no ledger yet.*fedpriv-client init --config .*site"):
        admin.start()
    first = admin.init()
    assert site_settings(admin.read(), admin.file).ledger.stem == first
    second = admin.init(another=True)
    with pytest.raises(ConfigError, match=r"data\.dataset_id: is missing") as caught:
        site_settings(admin.read(), admin.file)
    assert first in str(caught.value) and second in str(caught.value)
    for name in (first, second):
        settings = site_settings(admin.read(f"data.dataset_id='{name}'"), admin.file)
        assert settings.ledger == admin.folder / "state" / "ledgers" / f"{name}.db"


def test_what_a_file_says_of_a_ledger_is_what_it_was_made_with(admin: Administrator) -> None:
    admin.init()
    for override, key in (
        ("data.size=25", "data.size"),
        ("data.max_records_per_unit=2", "data.max_records_per_unit"),
        ("budget.delta=1e-4", "budget.delta"),
        ("budget.epsilon=20", "budget.epsilon"),
        ("budget.order=9", "budget.rule"),
    ):
        with pytest.raises(ConfigError, match=f"{key}: was fixed as"):
            admin.start(override)
    admin.start("budget.per_job=2").close()


def test_a_ledger_of_simulations_is_refused(admin: Administrator) -> None:
    name = "5" * 32
    path = ledger_path(admin.read(), name)
    path.parent.mkdir(parents=True)
    terms = Terms(name, 24, "record", 1, 1e-3, 10.0, simulated=True, rule=RdpRule.best(10.0, 1e-3))
    Ledger.create(path, terms).close()
    with pytest.raises(ConfigError, match="was made for simulations"):
        admin.start()


def test_a_ledger_under_another_name_is_refused(admin: Administrator) -> None:
    path = ledger_path(admin.read(), admin.init())
    path.rename(path.with_name("6" * 32 + ".db"))
    with pytest.raises(ConfigError, match=r"data\.dataset_id: was fixed as"):
        admin.start()


def test_the_report_of_another_ledger_is_no_sign_of_a_rollback(admin: Administrator) -> None:
    first = admin.init()
    site = admin.start()
    write_budget_report(site, "job-1")
    site.close()
    second = admin.init(another=True)
    (admin.folder / "notes.jsonl").write_text('{"note": "somebody else"}\n')
    site = admin.start(f"data.dataset_id='{second}'")
    write_budget_report(site, "job-2")
    site.close()
    older = ledger_path(admin.read(), second).read_bytes()
    site = admin.start(f"data.dataset_id='{second}'")
    site.ledger.commit(site.settings.limits.calibrated(admin.proposal(), site.ledger.terms))
    write_budget_report(site, "job-2")
    site.close()
    ledger_path(admin.read(), second).write_bytes(older)
    with pytest.raises(LedgerCorruptError, match="back in time"):
        admin.start(f"data.dataset_id='{second}'")
    assert sorted(ledgers(admin.read())) == sorted((first, second))


def test_a_new_ledger_for_the_same_people_is_refused(admin: Administrator) -> None:
    admin.init()
    admin.start().close()
    second = admin.init(another=True)
    with pytest.raises(LedgerError, match="24 with the ledger of data set"):
        admin.start(f"data.dataset_id='{second}'")
