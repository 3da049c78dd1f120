"""Membership and exposure, which need models that were trained on records.

Privacy
    Models are trained on halves of records, and with less noise, only where the records are public.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedpriv.auditing.result import Part, PartName, Refused, World, WorldName
from fedpriv.config.job import JobConfig
from fedpriv.data.read import read_records
from fedpriv.methods.proposal import job_recipe
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv.report.rundir import read_run
from fedpriv_audit import membership
from fedpriv_audit.attacks import Attacker, exposure_world, membership_world, run_world
from fedpriv_audit.pipeline import Tell
from fedpriv_audit.training import Trained, TrainingSize, trained_on_halves
from fedpriv_audit.two_worlds import CONFIDENCE
from fedpriv_audit.units import AuditedUnit, can_hold_canaries, chosen, read_units
from fedpriv_comparison.trial import trained_values
from fedpriv_server.own_records import spec_of
from fedpriv_server.run_directory import RunDirectory

AWAY = "The records are at the sites, and no file of them is named."
NO_TEXT = "A classifier writes no text, so it can't give away a secret."
NOT_PUBLIC = (
    "The records are not marked as public (job.data_is_public), and what this would compute from"
    " them is no release that a ledger paid for."
)


@dataclass
class RecordsAudit:
    """Train models, as far as the records allow it, and attack them.

    Attributes:
        config: the job, from `for_audit`.
        run: a run whose adapter is attacked, too, or None.
        refused: what was not run, and why.
        trained_without_noise: whether any model was trained with less noise than is claimed.
    """

    config: JobConfig
    run: RunDirectory | None
    size: TrainingSize
    pool: WorkerPool
    tell: Tell
    refused: list[Refused] = field(default_factory=list)
    trained_without_noise: bool = False
    _worlds: dict[PartName, list[World]] = field(default_factory=dict)

    def parts(self, wanted: Collection[str]) -> list[Part]:
        """Run membership and exposure on the same models, as far as they are wanted and allowed.

        Raises:
            FedprivError: as for `simulate`.
        """
        names: tuple[PartName, ...] = ("membership", "exposure")
        self._worlds = {name: [] for name in names if name in wanted and self._may(name)}
        if not self._worlds:
            return []
        clock = time.monotonic()
        size, privacy = self.size, self.config.privacy
        every = read_units(self.config.sites, spec_of(self.config))
        units = chosen(every, size.records, size.seed)
        claim = self._attack_all(units)
        took = time.monotonic() - clock
        settings = {
            "units": len(units),
            "rounds": self.config.job.rounds,
            "sample_rate": privacy.sample_rate,
            "times_the_rounds_without_noise": size.longer,
            "candidates": size.candidates,
            "seed": size.seed,
        }
        return [
            Part(
                name=name,
                epsilon=claim,
                delta=privacy.delta,
                confidence=CONFIDENCE,
                settings=settings,
                worlds=tuple(worlds),
                seconds=round(took / len(self._worlds), 1),
            )
            for name, worlds in self._worlds.items()
        ]

    def _may(self, name: str) -> bool:
        """Tell whether a part may be run. If not, note why."""
        config, why = self.config, None
        if any(site.data is None for site in config.sites):
            why = AWAY
        elif not config.job.data_is_public:
            why = NOT_PUBLIC
        elif name == "exposure" and not can_hold_canaries(spec_of(config)):
            why = NO_TEXT
        if why is not None:
            self.refused.append(Refused(what=name, why=why))
        return why is None

    def _attack_all(self, units: list[AuditedUnit]) -> float:
        """Train models on halves of the units in all worlds, and attack them. Return the claim."""
        config, size, claim = self.config, self.size, 0.0
        for name, share in size.worlds:
            self.tell(f"{size.models} models of halves of {len(units)} units, {name}")
            with tempfile.TemporaryDirectory() as work:
                trained = trained_on_halves(config, units, size, name, share, Path(work), self.pool)
            if trained.epsilon is not None and share == 1:
                claim = trained.epsilon
            self.trained_without_noise |= share < 1
            self._attack(name, trained, units)
        return claim

    def _attack(self, name: WorldName, trained: Trained, units: list[AuditedUnit]) -> None:
        """Run all wanted attacks on the models of one world."""
        config, worlds = self.config, self._worlds
        with self.pool.borrow(job_recipe(config)) as worker:
            attacker = Attacker(worker, spec_of(config), units)
            if "membership" in worlds:
                found, delta = worlds["membership"], config.privacy.delta
                fallen = attacker.fallen(trained.values)
                found.append(membership_world(name, trained, fallen, delta))
                if name == "as-claimed" and self.run is not None:
                    found.append(self._of_the_run(self.run, worker, trained, units))
            if "exposure" in worlds:
                pairs = zip(trained.values, trained.canaries, strict=True)
                told = list(itertools.chain(*(attacker.secrets(*pair) for pair in pairs)))
                exposed = exposure_world(name, trained, told, self.size.candidates)
                worlds["exposure"].append(exposed)

    def _of_the_run(
        self, run: RunDirectory, worker: Worker, references: Trained, units: list[AuditedUnit]
    ) -> World:
        """Attack a run's adapter: compare its training units with records it was evaluated on."""
        others = self._evaluated_on()
        attacker = Attacker(worker, spec_of(self.config), [*units, *others])
        fallen = attacker.fallen([*references.values, trained_values(run)])
        strangers = np.zeros((len(references.values), len(others)), dtype=bool)
        members = np.arange(len(units) + len(others)) < len(units)
        inside = np.vstack([np.hstack([references.inside, strangers]), members])
        scores = membership.against_references(fallen, inside)[-1]
        epsilon = max(report.epsilon_committed for report in read_run(run.path).reports)
        return run_world(scores, attacker.base, members, epsilon)

    def _evaluated_on(self) -> list[AuditedUnit]:
        """Read the records on which the coordinator evaluates, each as a unit."""
        config = self.config
        with tempfile.TemporaryDirectory() as cache:
            records = read_records(
                config.evaluation.data,
                config.data.columns,
                unit="record",
                cache_dir=Path(cache),
                key="evaluation.data",
            )
            columns = config.data.columns.items()
            return [AuditedUnit("", ({c: one[f] for f, c in columns},)) for one in records]
