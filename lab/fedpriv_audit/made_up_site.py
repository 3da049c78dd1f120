"""A site of made-up records. The server asks it for job after job, to learn who is in it.

It is an ordinary `Site`, with a ledger that takes any number of jobs. The audit tests what the site
does, not how often it may do so. The server knows every record that could be there and sends values
of its choice. They are always the same ones, and random, because then the gradients of different
texts differ most.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpriv.config.job import JobConfig
from fedpriv.config.sites import SiteSection
from fedpriv.data.encode import encode_record
from fedpriv.data.spec import DataSpec
from fedpriv.methods.proposal import job_recipe, propose
from fedpriv.methods.registry import find_method
from fedpriv.models.vector import Vector
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.rules import RdpRule
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import MAX_EPSILON, Proposal, StepRequest
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.synthetic.records import SetChange, SyntheticSet
from fedpriv_client.site import Site
from fedpriv_simulation.sites import Sites

Values = npt.NDArray[np.float64]
CLIP = 1e-3  # less than any record's gradient, so that a canary has the greatest allowed length
SPREAD = 0.2  # spread of the trained values; before training lora_B is 0, and no gradient reaches A
ROOM = 2 << 30  # bytes that sites may need, with all that they released
PUBLIC = ("fever and chills", "no pain", "a cough")  # a synthetic set, for a method that needs one


@dataclass(frozen=True)
class AuditPlan:
    """A job of the audit's own: few steps, with the noise that makes them cost ε at δ.

    Attributes:
        local: private steps that the site takes by itself in a round. All rounds have the same
            number.
    """

    epsilon: float
    delta: float
    sample_rate: float
    steps: int
    local: int = 1

    def in_rounds_of(self, sync: int) -> AuditPlan:
        """Return the plan with `sync` local steps a round, or with fewer if it has fewer steps."""
        local = min(sync, self.steps)
        return replace(self, local=local, steps=self.steps // local * local)

    @cached_property
    def noise_multiplier(self) -> float:
        """Return σ of the claim."""
        return calibrate_noise(self.epsilon, self.delta, self.sample_rate, self.steps)

    def epsilon_with(self, share: float) -> float:
        """Return what the same steps cost with a share of the noise."""
        if share == 1:
            return self.epsilon
        event = Event(self.sample_rate, share * self.noise_multiplier, self.steps)
        return epsilon_upper([event], self.delta)


class Server:
    """Propose the audit's jobs, and compute what a known record adds to a sum.

    Args:
        config: the federation's job. Its model, method, numerics and wire format are audited.

    Attributes:
        change: the synthetic set, for a method that has one. A release then holds coefficients of a
            small set, which can't tell many records apart.
    """

    def __init__(self, config: JobConfig, plan: AuditPlan, pool: WorkerPool) -> None:
        self.plan, self.pool = plan, pool
        self.config = _with_plan(config, plan)
        self.recipe = job_recipe(self.config)
        with pool.borrow(self.recipe) as worker:
            noise = np.random.default_rng(0).normal(size=worker.initial.shape)
            self.values: Vector = (worker.initial + SPREAD * noise).astype(np.float32)
            self.base, self.trained = worker.base.digest, worker.vector.size
            self.begin = worker.base.begin_digest
            self._vector = worker.vector.digest
        columns = self.config.data.columns
        records = [self.record(text) for text in PUBLIC]
        self._set = SyntheticSet(records) if find_method(config.job.method).needs_set else None
        self.change = None if self._set is None else SetChange.between(None, self._set)
        self._spec = DataSpec.of(columns, self.config.model, max_records_per_unit=1)

    def record(self, text: str) -> dict[str, str]:
        """Make a record with a text."""
        labels = self.config.model.labels
        return {"text": text, "label": labels[0]} if labels else {"text": text}

    def proposal(self, job: str, noise_share: float) -> Proposal:
        """Propose a job with a share of the noise that its claim asks for."""
        epsilon = self.plan.epsilon_with(noise_share)
        privacy = self.config.privacy.model_copy(update={"epsilon": epsilon})
        asked = self.config.model_copy(update={"privacy": privacy})
        return propose(asked, job_id=job, base=self.base, begin=self.begin, vector=self._vector)

    def vectors(self, texts: list[str]) -> Values:
        """Return what each sampled record adds to a sum before the noise, (len(texts), K)."""
        proposal = self.proposal("known", 1.0)
        found = []
        with self.pool.borrow(self.recipe) as worker:
            tokenizer = worker.base.tokenizer
            public = () if self._set is None else self._set.examples(self._spec, tokenizer)
            half: Any = find_method(proposal.method).at_site(proposal, public)
            half.prepare(worker, self.values)
            numerics = proposal.privacy.numerics
            for row, text in enumerate(texts, 1):
                unit = encode_record(
                    self.record(text), self._spec, tokenizer, row=row, source="canaries"
                )
                total = half.clipped_sum(worker, [unit], self.values, CLIP, numerics)
                step = 1.0 if total.grid is None else total.grid.step
                found.append(total.value.double().cpu().numpy() * step)
        return np.stack(found)

    def releases(self, site: Site, job: str, noise_share: float) -> tuple[list[Values], float]:
        """Return what a whole job of a new name releases, and σ of the plan in the ledger.

        There is one sum for each round. In a round with several steps the site sends a move, which
        is turned back into the sum of all steps.

        Args:
            noise_share: share of the claim's noise. The site grants it.
        """
        proposal, change = self.proposal(job, noise_share), self.change
        site.consider(proposal)
        digest = None if change is None else change.digest
        terms, found = site.ledger.terms, []
        for slot in range(0, proposal.training_steps, proposal.round_steps):
            asked = StepRequest(job_id=job, slot=slot, set_digest=digest)
            answer = site.step(asked, self.values, change)
            assert isinstance(answer, tuple)  # no job of the audit is a secure sum
            values = answer[1].values.astype(np.float64)
            if proposal.local is not None:  # each step moved by its sum over the expected batch
                values *= proposal.privacy.sample_rate * terms.declared_size
            found.append(values)
        plan = site.ledger.plan(job)
        assert plan is not None
        return found, plan.noise_multiplier


def scratch() -> Path | None:
    """Return a folder in memory with room for made-up sites. None means the usual temporary folder.

    The sites' ledgers wait for the disk several times a step. They pay for nobody, and need not
    outlive a crash.
    """
    memory = Path("/dev/shm")
    there = memory.is_dir() and os.access(memory, os.W_OK)
    return memory if there and shutil.disk_usage(memory).free > ROOM else None


@contextmanager
def made_up_site(server: Server, folder: Path, texts: list[str], declared: int) -> Iterator[Site]:
    """Open a site with these texts as its records, in a new folder.

    Args:
        declared: the site's declared size, above 1 / δ.
    """
    folder.mkdir(parents=True)
    data = folder / "records.jsonl"
    data.write_text("".join(json.dumps(server.record(text)) + "\n" for text in texts))
    section = SiteSection(name="audited", data=data, size=declared, epsilon=MAX_EPSILON)
    sites = Sites(server.config, folder, None, server.base, server.trained, server.begin)
    usual = sites.settings(section)
    terms, limits = replace(usual.terms, rule=RdpRule(2)), replace(usual.limits, min_noise=0.0)
    settings = replace(usual, terms=terms, limits=limits)
    site = Site(settings, server.pool, lambda job, slot: SystemCsprng())
    try:
        yield site
    finally:
        site.close()


def _with_plan(config: JobConfig, plan: AuditPlan) -> JobConfig:
    """Return the federation's job with the records, steps and claim of the audit."""
    columns = {"text": "text"} | ({"label": "label"} if config.model.labels else {})
    few = {"size": len(PUBLIC), "warm_start": 0}
    synthetic = config.synthetic and config.synthetic.model_copy(update=few)
    job = {"rounds": plan.steps // plan.local, "sync": plan.local, "wire": "float32"}
    privacy = {
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "sample_rate": plan.sample_rate,
        "clip_norm": CLIP,
        "unit": "record",
        "max_records_per_unit": 1,
        "trust": "local",
        "max_colluding": None,
        "roster": None,
        "spare_slots": 0,
        "normalise": None,
    }
    return config.model_copy(
        update={
            "job": config.job.model_copy(update=job),
            "data": config.data.model_copy(update={"columns": columns}),
            "privacy": config.privacy.model_copy(update=privacy),
            "synthetic": synthetic,
            # With these settings a round of local steps moves by all that the steps released.
            "optimizer": OptimizerSection(name="sgd", lr=1.0),
            "denoise": DenoiseSection(),
            "evaluation": config.evaluation.model_copy(update={"sites": None}),
        }
    )
