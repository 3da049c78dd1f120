"""One training run of a comparison, kept as one file."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv import __version__
from fedpriv.config.job import JobConfig
from fedpriv.config.load import NOT_OF_A_RUN, settings_of
from fedpriv.errors import RunError
from fedpriv.files import canonical_json, replacing, write_json
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.names import OwnKind
from fedpriv.personal.training import train_alone
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv_comparison.held_out_scores import Home, as_it_is, home_scores, own_examples
from fedpriv_comparison.outside import new_site, outside_examples
from fedpriv_comparison.public_training import train
from fedpriv_comparison.records import alone, pooled
from fedpriv_comparison.variants import BASE, PUBLIC, Place
from fedpriv_server.evaluation import evaluation_records
from fedpriv_server.own_records import spec_of
from fedpriv_server.run_directory import RunDirectory
from fedpriv_simulation.simulate import simulate
from fedpriv_strategies.averaged import adapter_of

log = logging.getLogger(__name__)
SCORES = ("eval_loss", "eval_accuracy", "eval_auc")  # on the reported records
Scores = dict[str, Any]  # of one evaluation, with the private steps before it ("round")


@dataclass(frozen=True)
class Trial:
    """Describe a run that a comparison wants.

    Attributes:
        config: the job with all settings applied, the seed too.
        seed: seed of samples and noise.
        inputs: digests of the files and models that the configuration names.
        personal: whether each site trains further by itself afterwards.
        counts: numbers of units that new sites train on at each outside site; 0 is the model
            itself.
    """

    method: str
    place: Place
    config: JobConfig
    seed: int
    inputs: Mapping[str, str]
    personal: bool = False
    counts: tuple[int, ...] = ()

    @property
    def before(self) -> Trial:
        """Return the run that made the model with which each site goes on."""
        return replace(self, personal=False)

    @property
    def kind(self) -> OwnKind:
        """Return what a site that goes on by itself begins at."""
        return "alone" if self.method == BASE else "personal"

    @property
    def key(self) -> str:
        """Name the run by all that decides its result. Files and models count by their content."""
        without = {"beside"} if self.personal or any(self.counts) else True
        dumped = self.config.model_dump(mode="json", exclude={**NOT_OF_A_RUN, "personal": without})
        place = f"{self.place}+personal" if self.personal else self.place
        settings = _by_content(dumped, self.inputs)
        made_by = [self.method, place, settings, self.seed, __version__, *self.counts]
        said = canonical_json(made_by)
        return f"{self.method}-{place}-{hashlib.sha256(said).hexdigest()[:16]}"


@dataclass(frozen=True)
class Result:
    """Hold the result of a run.

    Attributes:
        rounds: scores of the evaluated rounds, round 0 first; empty if the run failed.
        epsilon: ε of the worst-off site over the whole job; None without privacy.
        epsilon_committed: what that site's ledger claims for the job; None without privacy, and in
            results that were kept before this field existed.
        noise_multiplier: σ of that site.
        bytes_up: bytes sent by all sites in all rounds.
        seconds: wall time of the rounds with their evaluation, without loading.
        home: scores after the last round at each site that keeps records apart.
        error: why there is no result, or "" if there is one.
        outside: for each outside site, the scores of a new site there, by its number of units.
            Where each site trained alone, the new site begins at the model that is best on its
            records.
    """

    rounds: list[Scores]
    epsilon: float | None = None
    noise_multiplier: float | None = None
    bytes_up: int = 0
    seconds: float = 0.0
    home: dict[str, Home] = field(default_factory=dict)
    error: str = ""
    epsilon_committed: float | None = None
    outside: dict[str, dict[str, Home]] = field(default_factory=dict)

    def last(self, key: str) -> float | None:
        """Return a score after the last round."""
        found = self.rounds[-1].get(key) if self.rounds else None
        return None if found is None else float(found)

    @property
    def tuning_loss(self) -> float | None:
        """Return the loss by which settings are chosen: the mean over the sites at home, if any."""
        if self.home:
            return statistics.fmean(scores["tuning_loss"] for scores in self.home.values())
        return self.last("tuning_loss")


def kept(trial: Trial, folder: Path) -> Result | None:
    """Return the result of a trial that need not be run again, because it did not fail.

    Raises:
        RunError: the result's file can't be read.
    """
    result = told(trial, folder)
    return None if result is None or result.error else result


def told(trial: Trial, folder: Path) -> Result | None:
    """Return the result of a trial that has been run.

    Raises:
        RunError: the result's file can't be read.
    """
    path = _path(trial, folder)
    if not path.exists():
        return None
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8"))["result"])
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"{path}: holds no result. Remove it, to run it again.") from None


def run(trial: Trial, folder: Path, pool: WorkerPool) -> Result:
    """Return the result of a trial from its file, or by running it.

    The result of a failed run says why it failed. It runs again when it is asked for again.

    Args:
        folder: where results are kept.
    """
    before = kept(trial, folder)
    if before is not None:
        return before
    _path(trial, folder).unlink(missing_ok=True)
    work = folder / "work" / trial.key
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        result = _run(trial, folder, work, pool)
    except Exception as error:  # show any error, and run the other trials
        log.warning("%s failed: %s", trial.key, error)
        result = Result([], error=f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    made = {
        "method": trial.method,
        "place": trial.place,
        "seed": trial.seed,
        "config": settings_of(trial.config),
        "inputs": dict(trial.inputs),
        "version": __version__,
        "result": vars(result),
    }
    write_json(_path(trial, folder), made)
    return result


def _path(trial: Trial, folder: Path) -> Path:
    return folder / f"{trial.key}.json"


def values_path(trial: Trial, folder: Path) -> Path:
    """Return the path of a trial's trained values. They are kept if any site holds records out.

    A federation has (P,). Sites that each trained by themselves have (sites, P): one row for each
    site that holds records out, in the order of the federation file.
    """
    return _path(trial, folder).with_suffix(".npy")


def _run(trial: Trial, folder: Path, work: Path, pool: WorkerPool) -> Result:
    config, recipe = trial.config, job_recipe(trial.config)
    with pool.borrow(recipe) as worker:
        worker.failures.clear()
        # Before hours of training: faults of the records show at once.
        examples = {} if trial.personal else own_examples(config, worker)
    if trial.personal:
        return _trained_further(trial, folder, pool)
    result, values = _trained(trial, work, pool)
    with pool.borrow(recipe) as worker:
        home = {
            name: home_scores(as_it_is(worker, values[name]), own.reported, own.tuning)
            for name, own in examples.items()
        }
        result = replace(result, home=home, outside=_as_new_sites(trial, values, worker))
    if examples and trial.place == "federated":
        with replacing(values_path(trial, folder)) as path, path.open("wb") as stream:
            np.save(stream, next(iter(values.values())))
    return result


def _as_new_sites(
    trial: Trial, values: Mapping[str, Vector], worker: Worker
) -> dict[str, dict[str, Home]]:
    """Score a new site at each outside site.

    It begins at what the sites have after training, (P,).
    """
    starts = list({id(one): one for one in values.values()}.values())
    config, spec, seed = trial.config, spec_of(trial.config), trial.seed
    found: dict[str, dict[str, Home]] = {}
    for name, site in outside_examples(config, worker).items():
        best = min(starts, key=lambda one: as_it_is(worker, one)(site.tuning).eval_loss)
        for count in trial.counts:
            made = new_site(
                worker, best, site, count, config.personal, spec=spec, seed=seed, kind=trial.kind
            )
            scores = home_scores(as_it_is(worker, made), site.reported, site.tuning)
            found.setdefault(name, {})[str(count)] = scores
    return found


def _trained(trial: Trial, work: Path, pool: WorkerPool) -> tuple[Result, dict[str, Vector]]:
    """Return the result of training, and the trained values (P,) that each site then has."""
    config = trial.config
    names = [site.name for site in config.sites]
    if trial.method in PUBLIC:
        rounds, seconds, values = train(config, trial.method, trial.seed, pool)
        result = _checked(Result(rounds, seconds=seconds), config, pool)
        return result, dict.fromkeys(names, values)
    match trial.place:
        case "federated":
            configs = [config]
        case "pooled":
            configs = [pooled(config, work)]
        case "local":
            configs = [alone(config, name) for name in names]
    made = [_simulated(part, trial.seed, work / str(n), pool) for n, part in enumerate(configs)]
    parts = [result for result, _ in made]
    if len(made) == 1:
        return parts[0], dict.fromkeys(names, made[0][1])
    result = _joined(parts, sum(part.bytes_up for part in parts))
    return result, dict(zip(names, (values for _, values in made), strict=True))


def _joined(parts: Sequence[Result], bytes_up: int) -> Result:
    """Join runs of parts of the federation: mean scores, all seconds, and the largest ε."""
    return replace(
        max(parts, key=lambda part: part.epsilon or 0.0),
        rounds=_mean([part.rounds for part in parts]),
        bytes_up=bytes_up,
        seconds=sum(part.seconds for part in parts),
    )


def _trained_further(trial: Trial, folder: Path, pool: WorkerPool) -> Result:
    """Train the model of the run before further at each site, on its own records without noise.

    The score on everyone's records is the mean over the sites' models.

    Raises:
        RunError: the run before failed.
    """
    before, config, started = run(trial.before, folder, pool), trial.config, time.monotonic()
    if before.error:
        raise RunError(before.error)
    values = np.load(values_path(trial.before, folder))
    settings = config.personal.beginning(trial.kind)
    home, everyone, made = {}, [], []
    with pool.borrow(job_recipe(config)) as worker:
        reported, tuning = evaluation_records(config, worker.base.tokenizer)
        for name, site in own_examples(config, worker).items():
            own = train_alone(worker, values, site.training, settings, seed=trial.seed)
            made.append(own.values)
            model = as_it_is(worker, own.values)
            home[name] = home_scores(model, site.reported, site.tuning)
            row = {"round": float(config.steps), **model(reported).as_dict()}
            everyone.append([{**row, "tuning_loss": model(tuning).eval_loss}])
    with replacing(values_path(trial, folder)) as path, path.open("wb") as stream:
        np.save(stream, np.stack(made))
    return replace(
        before,
        rounds=[before.rounds[0], *_mean(everyone)],
        seconds=round(before.seconds + time.monotonic() - started, 2),
        home=home,
        outside={},  # nobody hands on what it trained for itself
    )


def _simulated(
    config: JobConfig, seed: int, folder: Path, pool: WorkerPool
) -> tuple[Result, Vector]:
    config = config.model_copy(update={"outside": ()})
    outcome = simulate(config, folder, source=folder, insecure_seed=seed, pool=pool)
    rounds: list[Scores] = [{"round": 0, **outcome.baseline.as_dict()}]
    for row in outcome.rounds:
        for site in config.sites:
            status = row["sites"].get(site.name, {}).get("status", "did not answer")
            if status != "ok":
                raise RunError(f"Round {row['round']}: {site.name}: {status}.")
        if row["eval_loss"] is not None:
            keys = (*SCORES, "tuning_loss")
            scores = {key: row[key] for key in keys if row.get(key) is not None}
            rounds.append({"round": row["round"] * config.job.sync, **scores})
    worst = max(outcome.budgets.values(), key=lambda report: report.epsilon_spent)
    noises = {event.noise_multiplier for event in worst.events}
    result = Result(
        rounds,
        worst.epsilon_spent,
        noises.pop() if len(noises) == 1 else None,  # None if steps had several values
        sum(row["bytes_up"] for row in outcome.rounds),
        round(sum(row["seconds"] for row in outcome.rounds), 2),
        epsilon_committed=worst.epsilon_committed,
    )
    return _checked(result, config, pool), trained_values(outcome.run)


def trained_values(run: RunDirectory) -> Vector:
    """Return the values (P,) after the last round.

    Raises:
        RunError: the run kept no trained values.
    """
    kept = run.checkpoint()
    if kept is None:
        raise RunError(f"{run.path}: keeps no trained values.")
    return adapter_of(kept.tensors.value)


def _checked(result: Result, config: JobConfig, pool: WorkerPool) -> Result:
    """Return the result if no step had an error. A site goes on after one, a comparison must not.

    Raises:
        RunError: units were left out, or steps released noise alone.
    """
    with pool.borrow(job_recipe(config)) as worker:
        failures = dict(worker.failures)
        worker.failures.clear()
    if failures:
        kinds = ", ".join(f"{count} × {name}" for name, count in sorted(failures.items()))
        raise RunError(f"Units or steps failed and counted as 0: {kinds}.")
    return result


def _by_content(value: Any, inputs: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _by_content(item, inputs) for key, item in value.items()}
    if isinstance(value, list):
        return [_by_content(item, inputs) for item in value]
    return inputs.get(value, value) if isinstance(value, str) else value


def over_folds(results: Sequence[Result]) -> Result:
    """Join runs that each left out one site: means, and the scores of each site that was left out.

    The ε is the largest of all runs.
    """
    failed = next((result for result in results if result.error), None)
    if failed is not None or len(results) == 1:
        return failed or results[0]
    homes: dict[str, list[list[Scores]]] = {}
    for result in results:
        for name, scores in result.home.items():
            homes.setdefault(name, []).append([scores])
    return replace(
        _joined(results, round(statistics.fmean(result.bytes_up for result in results))),
        home={name: _mean(found)[0] for name, found in homes.items()},
        outside={name: found for result in results for name, found in result.outside.items()},
    )


def _mean(curves: list[list[Scores]]) -> list[Scores]:
    """Return the mean of each score, round by round. Every curve counts the same."""
    means = []
    for rows in zip(*curves, strict=True):
        keys = set.intersection(*(set(row) for row in rows))
        means.append({key: sum(row[key] for row in rows) / len(rows) for key in sorted(keys)})
    return means
