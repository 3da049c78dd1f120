"""Run all parts of an audit, and choose what is audited.

Privacy
    In the two audits of the pipeline all records are made up. They cost nobody anything and always
    run. What may be done with records is in `fedpriv_audit.on_records`.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpriv import __version__
from fedpriv.auditing.result import TITLES, Audit, Part, PartName, Refused
from fedpriv.config.job import JobConfig
from fedpriv.config.load import HOSPITALS, check_no_overrides, digest, load_job
from fedpriv.errors import ConfigError, RunError, naming
from fedpriv.methods.proposal import job_recipe
from fedpriv.report.html import write_report
from fedpriv_audit.made_up_site import AuditPlan, Server, scratch
from fedpriv_audit.on_records import RecordsAudit
from fedpriv_audit.pipeline import PipelineSize, Tell, audit_pipeline
from fedpriv_audit.single_run import OneRunSize, audit_one_run, one_run_plan
from fedpriv_audit.training import TrainingSize, for_audit
from fedpriv_server.run_directory import RunDirectory
from fedpriv_simulation.shared_base import SharedBasePool
from fedpriv_simulation.workers import workers_of

SHOWN = ("torch", "transformers", "peft", "flwr", "numpy", "scipy")
FEW_VALUES = (
    "A release of this method is a few coefficients, in which many canaries can't be told apart."
)


@dataclass(frozen=True)
class AuditSize:
    """Hold how much each part of an audit runs."""

    pipeline: PipelineSize = field(default_factory=lambda: PipelineSize.of(400))
    one_run: OneRunSize = field(default_factory=OneRunSize)
    training: TrainingSize = field(default_factory=TrainingSize)

    def stated(
        self,
        seed: int,
        jobs: int | None = None,
        canaries: int | None = None,
        **training: Any,
    ) -> AuditSize:
        """Return the size with this seed for canaries and coins, and with the given values.

        Args:
            jobs: number of jobs in each world of the pipeline's audit.
            canaries: number of canaries in the one-run audit.
            training: fields of `TrainingSize`.
        """
        given = {key: value for key, value in training.items() if value is not None}
        return AuditSize(
            self.pipeline if jobs is None else PipelineSize.of(jobs),
            replace(self.one_run, seed=seed, canaries=canaries or self.one_run.canaries),
            replace(self.training, seed=seed, **given),
        )


QUICK = AuditSize(
    PipelineSize(
        (("as-claimed", 1.0, 40), ("tenth-noise", 0.1, 120)),
        AuditPlan(epsilon=1.0, delta=0.03, sample_rate=0.5, steps=2),
    ),
    OneRunSize(140, worlds=(("as-claimed", 1.0), ("tenth-noise", 0.1))),
    TrainingSize(
        records=32,
        models=2,
        rounds=5,
        candidates=8,
        longer=8,
        worlds=(("as-claimed", 1.0), ("no-noise", 0.0)),
    ),
)


@dataclass(frozen=True)
class Subject:
    """Hold what is audited: the settings of a federation, and a run of it if there is one."""

    config: JobConfig
    run: RunDirectory | None = None

    @classmethod
    def of(
        cls, job: JobConfig | Path | None, overrides: Sequence[str], run: Path | None, key: str
    ) -> Subject:
        """Choose a run, or a job from Python or a file. The default is the four hospitals' job.

        Args:
            key: the option that named the run, for error messages.

        Raises:
            ConfigError: settings are given for a run, or for a job from Python.
            RunError: as for `of_run`.
        """
        if run is not None:
            if job is not None or overrides:
                others = "the file and --set" if key == "--run" else "job and overrides"
                fix = f"Leave {others} out."
                raise ConfigError("a run has its own settings", key=key, fix=fix)
            return cls.of_run(run)
        if isinstance(job, JobConfig):
            check_no_overrides(overrides)
            return cls(job)
        return cls(load_job(job or HOSPITALS, overrides))

    @classmethod
    def of_run(cls, path: Path) -> Subject:
        """Read a run, with the settings that it had.

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
        sites = tuple(site.model_copy(update={"data": _file(site.data)}) for site in config.sites)
        config = config.model_copy(update={"sites": sites, "outside": ()})
        return cls(config, RunDirectory(path, info))


def _file(data: Path | str | None) -> Path | str | None:
    """Return a site's records as a federation file gives them. JSON has no paths, only texts."""
    return Path(data) if data is not None and Path(data).is_absolute() else data


def check_parts(names: str) -> list[PartName]:
    """Read the names of parts, and return them in the order of the audit.

    Raises:
        ConfigError: there is no such part.
    """
    asked = {name.strip() for name in names.split(",")}
    if unknown := sorted(asked - set(TITLES)):
        fix = f"Choose among {', '.join(TITLES)}."
        raise ConfigError("no such part", key="--parts", value=unknown[0], fix=fix)
    return [name for name in TITLES if name in asked]


def run_audit(
    subject: Subject,
    folder: Path,
    parts: Collection[PartName],
    size: AuditSize,
    *,
    source: Path,
    command: str,
    tell: Tell,
) -> Audit:
    """Audit, and keep the result in a folder. A run's own folder also gets a new page.

    Args:
        folder: folder of `audit.json`.
        source: the path that error messages name.
        command: the command as the result states it.
        tell: called with a text about each piece of work, for people who wait.

    Raises:
        FedprivError: a part can't be run. A folder that was made for the audit is then removed if
            it is empty.
    """
    started, config, parts_found = datetime.now(UTC), subject.config, list[Part]()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with naming(source), tempfile.TemporaryDirectory(dir=scratch()) as made_up:
            as_audited = for_audit(config, size.training)
            with closing(SharedBasePool(workers_of(as_audited))) as pool:
                records = RecordsAudit(as_audited, subject.run, size.training, pool, tell)
                if "pipeline" in parts:
                    plan = size.pipeline.plan.in_rounds_of(config.job.sync)
                    server, place = Server(config, plan, pool), Path(made_up, "pipeline")
                    parts_found.append(audit_pipeline(server, place, size.pipeline, tell))
                if "one-run" in parts:
                    plan = one_run_plan(size.one_run.canaries).in_rounds_of(config.job.sync)
                    server, place = Server(config, plan, pool), Path(made_up, "one-run")
                    if server.change is None:
                        parts_found.append(audit_one_run(server, place, size.one_run, tell))
                    else:
                        records.refused.append(Refused(what="one-run", why=FEW_VALUES))
                parts_found += records.parts(parts)
                with pool.borrow(job_recipe(as_audited)) as worker:
                    base = worker.base.digest
    except BaseException:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise
    found = Audit(
        command=command,
        started=started,
        seconds=math.fsum(part.seconds or 0 for part in parts_found),
        versions={"fedpriv": __version__} | {name: version(name) for name in SHOWN},
        job=config.job.name,
        job_id=None if subject.run is None else subject.run.info["job_id"],
        method=config.job.method,
        base_digest=base,
        config_digest=digest(config),
        data_is_public=config.job.data_is_public,
        not_private=records.trained_without_noise,
        seeds={
            "canaries, coins and halves": str(size.training.seed),
            "sampling and noise": "operating system",
            "sampling where there is no noise": "the number of the model",
        },
        parts=tuple(parts_found),
        refused=tuple(records.refused),
    )
    found.write(folder)
    if subject.run is not None:
        write_report(folder)
    return found
