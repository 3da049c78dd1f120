"""What `flwr run --run-config` says, as server and sites both read it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context

from fedpriv.config.job import JobConfig
from fedpriv.config.load import HOSPITALS, load_job


@dataclass(frozen=True)
class Settings:
    """The settings of a run. Paths that are relative begin where the SuperLink was started.

    Attributes:
        federation: file of the job and its sites.
        overrides: of keys of that file, as `fedpriv simulate --set` takes them.
        out: run directory.
    """

    federation: Path
    overrides: tuple[str, ...]
    out: Path
    resume: bool
    insecure_seed: int | None

    @classmethod
    def of(cls, context: Context) -> Settings:
        """Read a context's settings: server and sites find the same run directory in theirs."""
        given = context.run_config
        seed = given["insecure-seed"]
        return cls(
            federation=Path(str(given["federation"] or HOSPITALS)).resolve(),
            overrides=tuple(shlex.split(str(given["set"]))),
            out=Path(str(given["out"] or f"runs/flower-{context.run_id}")).resolve(),
            resume=bool(given["resume"]),
            insecure_seed=None if seed == "" else int(seed),
        )

    def job(self) -> JobConfig:
        """Return what the federation file says."""
        return load_job(self.federation, self.overrides)
