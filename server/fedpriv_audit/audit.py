"""All parts of an audit, and what may be run on which records.

Privacy
    What is made up costs nobody anything, so the two audits of the pipeline run always. Models are
    trained on records as claimed and with less noise only where the records are public. On private
    ones a single run is made as any other, paid for by each site's ledger, and looked at for
    canaries alone: what is computed from its adapter and made-up texts costs no more.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv import __version__
from fedpriv.audit import membership
from fedpriv.audit.result import Audit, Part, PartName, Refused, World
from fedpriv.config.job import JobConfig
from fedpriv.config.load import digest
from fedpriv.data import read_records
from fedpriv.errors import ConfigError, RunError
from fedpriv.files import private_folder
from fedpriv.training.pool import WorkerPool
from fedpriv.training.worker import ModelRecipe
from fedpriv_audit.attacks import Attacker, exposure_world, membership_world, run_world
from fedpriv_audit.made_up_site import AuditPlan, Server, scratch
from fedpriv_audit.pipeline import CONFIDENCE, PipelineSize, Tell, audit_pipeline
from fedpriv_audit.single_run import OneRunSize, audit_one_run, one_run_plan
from fedpriv_audit.training import (
    Trained,
    TrainingSize,
    for_audit,
    trained_on_all,
    trained_on_halves,
    trained_values,
)
from fedpriv_audit.units import AuditedUnit, can_hold_canaries, chosen, read_units
from fedpriv_server.run_directory import RunDirectory
from fedpriv_simulation.workers import workers_of

SHOWN = ("torch", "transformers", "peft", "flwr", "numpy", "scipy")
RUN = "audit-run"  # the folder of the one run on private records
NOT_PUBLIC = (
    "The records are not marked as public (job.data_is_public), and what this would compute from"
    " them is no release that a ledger paid for."
)

FEW_VALUES = (
    "A release of this method is a few coefficients, in which many canaries can't be told apart."
)


@dataclass(frozen=True)
class AuditSize:
    """How much of everything."""

    pipeline: PipelineSize = field(default_factory=lambda: PipelineSize.of(400))
    one_run: OneRunSize = field(default_factory=OneRunSize)
    training: TrainingSize = field(default_factory=TrainingSize)


QUICK = AuditSize(
    PipelineSize(
        (("as-claimed", 1.0, 40), ("tenth-noise", 0.1, 80)),
        AuditPlan(epsilon=1.0, delta=0.03, sample_rate=0.5, steps=2),
    ),
    OneRunSize(200, worlds=(("as-claimed", 1.0), ("tenth-noise", 0.1))),
    TrainingSize(
        records=40,
        models=2,
        rounds=5,
        candidates=8,
        longer=8,
        worlds=(("as-claimed", 1.0), ("no-noise", 0.0)),
    ),
)


@dataclass(frozen=True)
class Subject:
    """What is audited: the settings of a federation, and a run of it if there is one."""

    config: JobConfig
    run: RunDirectory | None = None

    @classmethod
    def of_run(cls, path: Path) -> Subject:
        """A run, with the settings that it had.

        Raises:
            RunError: there is no finished run there.
        """
        try:
            info: dict[str, Any] = json.loads((path / "run.json").read_text(encoding="utf-8"))
            config = JobConfig.model_validate(info["config"])
        except (OSError, ValueError, KeyError, TypeError):
            raise RunError(f"{path}: is no run directory that can be read.") from None
        if info.get("status") != "finished":
            raise RunError(f"{path}: the run is not finished. Audit it when it is.")
        return cls(config, RunDirectory(path, info))


class Auditor:
    """Runs the parts of an audit.

    Args:
        folder: where `audit.json` will be, and the run on private records.
        tell: what is being done, for whoever waits.
    """

    def __init__(
        self, subject: Subject, size: AuditSize, folder: Path, tell: Tell = lambda text: None
    ) -> None:
        self._subject, self._size, self._folder, self._tell = subject, size, folder, tell
        self._config = for_audit(subject.config, size.training)
        self._pool = WorkerPool(workers_of(self._config))
        self._charged: dict[str, float] = {}
        self._refused: list[Refused] = []

    def run(self, parts: Collection[PartName], command: str) -> Audit:
        """The audit of these parts.

        Raises:
            FedprivError: a part can't be run, such as for a ledger that can't pay.
        """
        started, clock, found = datetime.now(UTC), time.monotonic(), list[Part]()
        subject, size, sync = self._subject, self._size, self._subject.config.job.sync
        try:
            with tempfile.TemporaryDirectory(dir=scratch()) as made_up:
                if "pipeline" in parts:
                    plan = size.pipeline.plan.in_rounds_of(sync)
                    server = Server(subject.config, plan, self._pool)
                    folder = Path(made_up, "pipeline")
                    found.append(audit_pipeline(server, folder, size.pipeline, self._tell))
                if "one-run" in parts:
                    plan = one_run_plan(size.one_run.canaries).in_rounds_of(sync)
                    server = Server(subject.config, plan, self._pool)
                    folder = Path(made_up, "one-run")
                    if server.has_few_values:
                        self._refused.append(Refused(what="one-run", why=FEW_VALUES))
                    else:
                        found.append(audit_one_run(server, folder, size.one_run, self._tell))
            wanted = [name for name in ("membership", "exposure") if self._may(name, parts)]
            if wanted:
                found += self._on_records(wanted)
            with self._pool.borrow(ModelRecipe.of(self._config)) as worker:
                base = worker.base.digest
        finally:
            self._pool.close()
        twins = any(w.name.endswith("noise") for p in found[-len(wanted) :] for w in p.worlds)
        return Audit(
            command=command,
            started=started,
            seconds=round(time.monotonic() - clock, 1),
            versions={"fedpriv": __version__} | {name: version(name) for name in SHOWN},
            job=subject.config.job.name,
            job_id=None if subject.run is None else subject.run.info["job_id"],
            method=subject.config.job.method,
            base_digest=base,
            config_digest=digest(subject.config),
            data_is_public=subject.config.job.data_is_public,
            not_private=bool(wanted) and twins,
            charged=self._charged,
            seeds={
                "canaries, coins and halves": str(size.training.seed),
                "sampling and noise": "operating system",
                "sampling where there is no noise": "the number of the model",
            },
            parts=tuple(found),
            refused=tuple(self._refused),
        )

    def _may(self, name: str, parts: Collection[str]) -> bool:
        """Whether a part on records is to be run, and may; notes why not."""
        config = self._subject.config
        if name not in parts:
            return False
        why = None
        if config.job.engine == "network" or any(site.data is None for site in config.sites):
            why = "The records are at the sites, and no file of them is named."
        elif name == "membership" and not config.job.data_is_public:
            why = NOT_PUBLIC
        elif name == "exposure" and not can_hold_canaries(config):
            why = "A classifier tells no text, so it can tell no secret."
        if why is not None:
            self._refused.append(Refused(what=name, why=why))
        return why is None

    def _on_records(self, names: list[str]) -> list[Part]:
        """Membership and exposure, of the same models."""
        clock, config, size = time.monotonic(), self._config, self._size.training
        units = read_units(config)
        worlds: dict[str, list[World]] = {name: [] for name in names}
        claim = 0.0
        if config.job.data_is_public:
            units = chosen(units, size.records, size.seed)
            with self._pool.borrow(ModelRecipe.of(config)) as worker:
                attacker = Attacker(worker, config, units)
            units = [u for u, there in zip(units, attacker.readable, strict=True) if there]
            for name, share in size.worlds:
                self._tell(f"{size.models} models of {len(units)} units, {name}")
                with tempfile.TemporaryDirectory() as folder:
                    trained = trained_on_halves(
                        config, units, size, name, share, Path(folder), self._pool
                    )
                if name == "as-claimed":
                    assert trained.epsilon is not None
                    claim = trained.epsilon
                self._attack(name, trained, units, worlds)
        else:
            for twin in (name for name, share in size.worlds if share != 1):
                self._refused.append(Refused(what=f"exposure, {twin}", why=NOT_PUBLIC))
            self._tell("one run on all records, with canaries, paid for by the sites' ledgers")
            trained = trained_on_all(config, units, size, self._run_folder(), self._pool)
            assert trained.epsilon is not None
            claim, self._charged = trained.epsilon, dict(trained.charged)
            self._attack("as-claimed", trained, [], worlds)
        seconds = round((time.monotonic() - clock) / len(names), 1)
        privacy = config.privacy
        return [
            Part.model_validate(
                {
                    "name": name,
                    "epsilon": claim,
                    "delta": privacy.delta,
                    "confidence": CONFIDENCE,
                    "settings": {
                        "units": len(units) if config.job.data_is_public else None,
                        "rounds": config.job.rounds,
                        "sample_rate": privacy.sample_rate,
                        "times_the_rounds_without_noise": size.longer,
                        "candidates": size.candidates,
                        "seed": size.seed,
                    },
                    "worlds": worlds[name],
                    "seconds": seconds,
                }
            )
            for name in names
        ]

    def _attack(
        self, name: Any, trained: Trained, units: list[AuditedUnit], worlds: dict[str, list[World]]
    ) -> None:
        config, delta = self._config, self._config.privacy.delta
        with self._pool.borrow(ModelRecipe.of(config)) as worker:
            if "membership" in worlds:
                attacker = Attacker(worker, config, units)
                fallen = attacker.fallen(trained.values)
                worlds["membership"].append(
                    membership_world(name, trained, fallen, delta, CONFIDENCE)
                )
                if name == "as-claimed" and self._subject.run is not None:
                    world = self._of_the_run(self._subject.run, worker, trained, units)
                    worlds["membership"].append(world)
            if "exposure" in worlds:
                attacker = Attacker(worker, config, [])
                found = [
                    one
                    for values, secrets in zip(trained.values, trained.canaries, strict=True)
                    for one in attacker.secrets(values, secrets)
                ]
                candidates = self._size.training.candidates
                worlds["exposure"].append(exposure_world(name, trained, found, candidates))

    def _of_the_run(
        self, run: RunDirectory, worker: Any, references: Trained, units: list[AuditedUnit]
    ) -> World:
        """Its adapter: units that it was trained on against the records it was evaluated on."""
        config = self._config
        with tempfile.TemporaryDirectory() as cache:
            records = read_records(
                config.evaluation.data,
                config.data.columns,
                unit="record",
                cache_dir=Path(cache),
                key="evaluation.data",
            )
            others = [
                AuditedUnit("", ({c: record[f] for f, c in config.data.columns.items()},))
                for record in records
            ]
        attacker = Attacker(worker, config, [*units, *others])
        own = trained_values(run)
        fallen = attacker.fallen([*references.values, own])
        strangers = np.zeros((len(references.values), len(others)), dtype=bool)
        inside = np.hstack([references.inside, strangers])
        members = np.arange(len(units) + len(others)) < len(units)
        scores = membership.against_references(fallen, np.vstack([inside, members]))[-1]
        there = attacker.readable
        return run_world(
            scores[there], attacker.base[there], members[there], references, CONFIDENCE
        )

    def _run_folder(self) -> Path:
        """A new folder for the run on private records.

        Raises:
            RunError: there is one already.
        """
        folder = self._folder / RUN
        if folder.exists():
            raise RunError(
                f"{folder}: is of an earlier audit, whose ledgers paid for it. Give another --out."
            )
        return private_folder(folder)


def check_parts(names: str) -> list[PartName]:
    """Parts by name, in their order.

    Raises:
        ConfigError: there is no such part.
    """
    known: tuple[PartName, ...] = ("pipeline", "one-run", "membership", "exposure")
    asked = {name.strip() for name in names.split(",")}
    if unknown := sorted(asked - set(known)):
        raise ConfigError(
            "no such part", key="--parts", value=unknown[0], fix=f"Choose among {', '.join(known)}."
        )
    return [name for name in known if name in asked]
