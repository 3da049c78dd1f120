"""Read a run directory as data: run.json, metrics.jsonl and every site's budget.json."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedpriv.documents import malformed
from fedpriv.errors import ConfigError, RunError
from fedpriv.report import budget
from fedpriv.report.budget import BudgetReport
from fedpriv.software import Installed


class Part(BaseModel):
    """Part of a file that may hold more than the report shows."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RunJob(Part):
    name: str
    method: str
    rounds: int = Field(ge=1)
    engine: str = "inline"


class SiteState(StrEnum):
    """The state of a site in a round; after `REFUSED` a colon and the reason follow."""

    OK = "ok"
    READY = "ready"
    ACCEPTED = "accepted"
    NOT_ASKED = "not asked yet"
    AWAY = "was away"
    NO_REPLY = "no reply"
    ABSENT = "absent"
    UNUSABLE = "unusable"
    REFUSED = "refused"
    WAITS = "waits for a person's yes (paused)"


class RunModel(Part):
    name: str
    task: str
    digest: str
    begin: str | None = None
    trainable: int | None = None


class Preparing(Part):
    """What run.json surely holds before the model is loaded and the sites agree."""

    status: str


class Evaluation(Part):
    """Held-out scores; a model that diverged may have scores that are not finite."""

    eval_loss: float | None = None
    eval_accuracy: float | None = None
    eval_auc: float | None = None
    eval_hardest: float | None = None


class OutsideSite(Part):
    """Scores on public records at a site that took no part."""

    models: dict[str, Evaluation]


class Run(Part):
    format: Literal[1]
    job: RunJob
    job_id: str
    status: Literal["running", "interrupted", "finished"]
    started: datetime
    # Only a day if records are private: law 19.
    finished: datetime | date | None = None
    ended_early: str = ""
    owed: dict[str, tuple[str, ...]] = {}  # kind → sites, see `fedpriv_server.owed`
    config_digest: str
    versions: dict[str, str | None]
    software: dict[str, Installed] = {}
    model: RunModel
    private: bool
    seeds: dict[str, Any] = {}
    baseline: Evaluation | None = None
    outside: dict[str, OutsideSite] = {}


class SiteRound(Part):
    """One site in one round. Figures are absent if it did not reply."""

    epsilon_spent: float | None = None
    epsilon_committed: float | None = None
    status: str
    noise_multiplier: float | None = None


class DenoisedRound(Part):
    """Counts of a round's matrices: with a signal, in all, and expected with one by chance."""

    on: int = Field(ge=0)
    matrices: int = Field(ge=0)
    by_chance: float = Field(ge=0)


class EvolvedRound(Part):
    """How many synthetic records are new, and how long it took."""

    made: int = Field(ge=0)
    seconds: float = Field(ge=0)


class Estimate(Part):
    """A mean, and the standard deviation of the noise in it."""

    mean: float
    deviation: float = Field(ge=0)


class SiteLook(Part):
    """A look at one site's held-out records. It has no figures if the site did not answer."""

    status: str
    loss: Estimate | None = None
    accuracy: Estimate | None = None


class Look(SiteLook):
    """A look at the held-out records of all sites that answered."""

    status: str = "ok"
    counted: int = Field(ge=0)
    steps: int = Field(ge=1)
    share: float = Field(gt=0, le=1)
    sites: dict[str, SiteLook]
    bytes_up: int = Field(0, ge=0)
    bytes_down: int = Field(0, ge=0)


class Round(Evaluation):
    round: int = Field(ge=1)
    bytes_up: int = Field(ge=0)
    bytes_down: int = Field(ge=0)
    seconds: float | None = Field(None, ge=0)
    sites: dict[str, SiteRound]
    denoised: DenoisedRound | None = None
    synthetic: EvolvedRound | None = None
    held_out: Look | None = None


@dataclass(frozen=True)
class RunDirectory:
    run: Run
    rounds: list[Round]
    reports: list[BudgetReport]

    @property
    def site_names(self) -> list[str]:
        """Every site that reported or was asked, in order."""
        asked = {name for row in self.rounds for name in row.sites}
        return sorted(asked | {report.site for report in self.reports})

    @property
    def is_private(self) -> bool:
        """Whether pages and files made from the run need no stamp NOT PRIVATE."""
        return self.run.private and all(report.private for report in self.reports)

    @property
    def last_evaluation(self) -> Round | None:
        return next((row for row in reversed(self.rounds) if row.eval_loss is not None), None)


def read_run(run_dir: Path) -> RunDirectory:
    """Read everything that a report needs of `run_dir`.

    Raises:
        RunError: `run_dir` is no run directory, or lacks what its status promises.
        ConfigError: a file is malformed; the error names the file and the key.
    """
    path = run_dir / "run.json"
    try:
        if Preparing.model_validate_json(_bytes(path)).status == "preparing":
            raise RunError(f"{path}: the run has not begun, so there is nothing to report yet.")
        run = Run.model_validate_json(_bytes(path))
    except ValidationError as error:
        raise malformed(error, path) from None
    rounds = _read_metrics(run_dir / "metrics.jsonl", run.status)
    reports = _read_reports(run_dir / "sites")
    # Over the network, a site may be gone before its report was asked for.
    if run.private and run.status == "finished" and run.job.engine != "network" and not reports:
        raise RunError(
            f"{run_dir / 'sites'}: has no NAME/budget.json, so a finished private run has"
            " nothing to say about privacy. Copy the whole run directory."
        )
    return RunDirectory(run, rounds, reports)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        half = (path.parent / "run.json").exists()
        fix = "Copy the whole run directory" if half else "Give the directory of a run"
        raise RunError(f"{path}: no such file. {fix}, such as runs/NAME.") from None
    except OSError as error:
        raise RunError(f"{path}: can't be read: {error.strerror}.") from None


def _read_metrics(path: Path, status: str) -> list[Round]:
    if status != "finished" and not path.exists():
        return []
    lines = _bytes(path).split(b"\n")
    last = lines[-1]  # empty, unless a process is writing this line or was stopped while writing
    rounds: dict[int, Round] = {}
    for number, line in enumerate(lines if last else lines[:-1], start=1):
        try:
            row = Round.model_validate_json(line)
        except ValidationError as error:
            if number == len(lines) and status != "finished":
                break
            raise malformed(error, f"{path}, line {number}") from None
        rounds[row.round] = row  # a resumed run may write its last round again
    return [rounds[number] for number in sorted(rounds)]


def _read_reports(sites: Path) -> list[BudgetReport]:
    reports = []
    for path in sorted(sites.glob("*/budget.json")):
        report = budget.read(path)
        if report.site != path.parent.name:
            problem = f"is in the folder of site {path.parent.name!r}"
            fix = "Put it in the folder of its own site."
            raise ConfigError(problem, file=path, key="site", value=report.site, fix=fix)
        reports.append(report)
    return reports


def finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
