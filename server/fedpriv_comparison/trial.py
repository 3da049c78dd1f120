"""One training run of a comparison, kept as one file."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv import __version__
from fedpriv.config.job import JobConfig
from fedpriv.config.load import digest
from fedpriv.files import write_json
from fedpriv.training.worker import WorkerPool
from fedpriv_comparison.public_training import train
from fedpriv_comparison.records import alone, pooled
from fedpriv_comparison.variants import PUBLIC, Place
from fedpriv_simulation.simulate import simulate

log = logging.getLogger(__name__)
Row = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """A run that a comparison wants.

    Attributes:
        config: with all settings applied; its seed too.
        seed: of samples and noise.
    """

    method: str
    place: Place
    config: JobConfig
    seed: int

    @property
    def key(self) -> str:
        """Names the run by all that decides its result."""
        said = json.dumps([self.method, self.place, digest(self.config), self.seed, __version__])
        return f"{self.method}-{self.place}-{hashlib.sha256(said.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        rounds: scores of the evaluated rounds, round 0 first; none if the run failed.
        epsilon: of the worst-off site over the whole job; None without privacy.
        noise_multiplier: σ of that site.
        bytes_up: by all sites in all rounds.
        seconds: wall time.
        error: why there is no result; "" if there is one.
    """

    rounds: list[Row]
    epsilon: float | None = None
    noise_multiplier: float | None = None
    bytes_up: int = 0
    seconds: float = 0.0
    error: str = ""

    def last(self, key: str) -> float | None:
        """A score after the last round."""
        found = self.rounds[-1].get(key) if self.rounds else None
        return None if found is None else float(found)


def kept(trial: Trial, folder: Path) -> Result | None:
    """The result of a trial that has been run."""
    path = _path(trial, folder)
    if not path.exists():
        return None
    return Result(**json.loads(path.read_text(encoding="utf-8"))["result"])


def run(trial: Trial, folder: Path, pool: WorkerPool) -> Result:
    """The result of a trial: from its file, or by running it.

    A run that fails is a result too, and is not tried again. A run that is interrupted is not.

    Args:
        folder: where results are kept.
    """
    before = kept(trial, folder)
    if before is not None:
        return before
    started = time.monotonic()
    work = folder / "work" / trial.key
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        result = _run(trial, work, pool)
    except Exception as error:  # whatever it is, it is shown, and the others are run
        log.warning("%s failed: %s", trial.key, error)
        result = Result([], error=f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    result = Result(**{**vars(result), "seconds": round(time.monotonic() - started, 2)})
    about = {"method": trial.method, "place": trial.place, "seed": trial.seed}
    settings = trial.config.model_dump(mode="json")
    write_json(
        _path(trial, folder),
        {**about, "config": settings, "version": __version__, "result": vars(result)},
    )
    return result


def _path(trial: Trial, folder: Path) -> Path:
    return folder / f"{trial.key}.json"


def _run(trial: Trial, work: Path, pool: WorkerPool) -> Result:
    config = trial.config
    if trial.method in PUBLIC:
        steps = 0 if trial.method == "base" else config.job.rounds
        clip = trial.method == "lora-clipped"
        return Result(train(config, trial.seed, rounds=steps, clip=clip, pool=pool))
    match trial.place:
        case "federated":
            configs = [config]
        case "pooled":
            configs = [pooled(config, work)]
        case "local":
            configs = [alone(config, site.name) for site in config.sites]
    parts = [
        _simulated(part, trial.seed, work / str(index), pool) for index, part in enumerate(configs)
    ]
    if len(parts) == 1:
        return parts[0]
    worst = max(parts, key=lambda part: part.epsilon or 0.0)
    return Result(
        _mean([part.rounds for part in parts]),
        worst.epsilon,
        worst.noise_multiplier,
        sum(part.bytes_up for part in parts),
    )


def _simulated(config: JobConfig, seed: int, folder: Path, pool: WorkerPool) -> Result:
    outcome = simulate(config, folder, source=folder, insecure_seed=seed, pool=pool)
    scored = [row for row in outcome.rounds if row["eval_loss"] is not None]
    keys = ("round", "eval_loss", "eval_accuracy", "eval_auc", "tuning_loss")
    rounds: list[Row] = [{"round": 0, **outcome.baseline.as_dict()}]
    rounds += [{key: row[key] for key in keys if row.get(key) is not None} for row in scored]
    reports = outcome.budgets.values()
    worst = max(reports, key=lambda report: report.epsilon_spent)
    return Result(
        rounds,
        worst.epsilon_spent,
        worst.events[0].noise_multiplier if worst.events else None,
        sum(row["bytes_up"] for row in outcome.rounds),
    )


def _mean(curves: list[list[Row]]) -> list[Row]:
    """The mean of each score, round by round; every site counts the same."""
    means = []
    for rows in zip(*curves, strict=True):
        keys = set.intersection(*(set(row) for row in rows))
        means.append({key: sum(row[key] for row in rows) / len(rows) for key in sorted(keys)})
    return means
