"""A site with a tiny model, for the tests beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.privacy.ledger.ledger import Terms
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import Proposal, StepRequest
from fedpriv_client.limits import Limits
from fedpriv_client.orders import Asked
from fedpriv_client.site import Site
from fedpriv_client.site_settings import SiteSettings

TERMS = Terms("0" * 32, 24, "record", 1, 1e-3, 6.0, simulated=True)


class Setting:
    """A site with a tiny model, and the proposal it accepts."""

    def __init__(self, folder: Path, model: Path) -> None:
        rows = [{"note": f"note {i} fever {i * i}"} for i in range(24)]
        self.data = folder / "notes.jsonl"
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.folder = folder
        self.pool = WorkerPool()
        self.compute = ComputeSection(device="cpu")
        recipe = ModelRecipe(
            ModelSection(name=str(model), max_length=32),
            LoraSection(r=2, target_modules=("q_proj",)),
            0,
            self.compute,
        )
        with self.pool.borrow(recipe) as worker:
            self.vector = worker.vector.read()
            self.proposal = Proposal(
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

    def site(
        self,
        terms: Terms = TERMS,
        witness: Path | None = None,
        model: str | None = None,
        begin: str | None = None,
        ledger: Path | None = None,
        server: str | None = None,
        ask: bool = False,
        **limits: Any,
    ) -> Site:
        settings = SiteSettings(
            name="clinic",
            data=self.data,
            columns={"text": "note"},
            state_dir=self.folder / "state",
            ledger=ledger or self.folder / "state" / "ledger.db",
            terms=terms,
            limits=self.limits(**limits),
            compute=self.compute,
            witness=witness,
            model=model,
            begin=begin,
            server=server,
            ask=ask,
        )
        return Site(settings, self.pool, lambda job, slot: SystemCsprng())

    def limits(self, **changes: Any) -> Limits:
        known = {
            "per_job": 6.0,
            "base_digest": self.proposal.base_digest,
            "max_trainable": 10**6,
        }
        return Limits(**{**known, **changes})

    def plan(self, proposal: Proposal | None = None) -> Plan:
        """What the site would commit to for a proposal."""
        return self.limits().plan(self.proposal if proposal is None else proposal, TERMS)

    def asked(self, proposal: Proposal | None = None) -> Asked:
        """What a person would approve."""
        return Asked(self.plan(proposal), TERMS.dataset_id, TERMS.delta)

    def change(self, **changes: Any) -> Proposal:
        return self.proposal.model_copy(update=changes)


def request(slot: int = 0, **changes: Any) -> StepRequest:
    return StepRequest(job_id="job-1", slot=slot, **changes)
