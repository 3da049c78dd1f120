"""What is trained for a point of `benchmarks/border.py`, and what its models are worth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from border_design import COLLUDING, QUICK_POINTS, Kind, Point, Size
from mixtures import own_and_federated, together

from fedpriv.errors import RunError
from fedpriv.files import write_json
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.personal.together import Model
from fedpriv.privacy.config import PrivacySection
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv_comparison.comparison import Comparison
from fedpriv_comparison.held_out_scores import as_it_is, own_examples
from fedpriv_comparison.runner import Runner
from fedpriv_comparison.trial import Trial, told, values_path
from fedpriv_comparison.variants import parse_variants
from fedpriv_server.evaluation import evaluation_records

FORMAT = 3  # of the file that is kept for each point and seed
FIFTH = 0.2  # the weight of the federation's adapter beside others


@dataclass(frozen=True)
class Entry:
    """Hold a point and a seed, with the file of its federation."""

    kind: Kind
    point: Point
    seed: int
    file: Path
    size: Size

    @property
    def name(self) -> str:
        """Return the entry's name, for its file and for the person who waits."""
        return f"{self.kind.name}-{self.point.name}-{self.seed}"

    @property
    def trials(self) -> dict[str, Trial]:
        """Return the runs that the entry takes, by name.

        Runs that depend on neither ε nor trust have the settings of the common point. So they run
        once for all points with as many sites and records. Runs of one seed have the same samples.
        """
        base, again = (self._alone(seed) for seed in (self.seed, self.seed + 1))
        private = _trial(self._asked(self.point), "dp-lora", self.seed)
        needed = {
            "alone": base,
            "federated": private,
            "federated+personal": replace(private, personal=True),
            "again": again,
        }
        if self.decides and self.seed == 1:
            lora = _trial(self._asked(self.point.common), "lora", self.seed)
            needed |= {"lora": lora, "lora+personal": replace(lora, personal=True)}
        return needed

    @property
    def decides(self) -> bool:
        """Tell whether adapters without noise are measured, too, with one seed.

        It is true wherever a point with as many sites and records has several seeds.
        """
        decide = [point.common for point in self.kind.points if point.seeds > 1]
        return self.point.common in decide or self.point in QUICK_POINTS

    def _alone(self, seed: int) -> Trial:
        """Return the run that trains each site alone.

        It begins at the base model, or at what public records make of it.
        """
        if not self.point.warm_start:
            begun = _trial(self._asked(self.point.common), "base", seed)
        else:
            asked = _asked(self.file, self.point.common, self.size, self.kind.warm)
            begun = _trial(asked, "warm-start", seed)
        return replace(begun, personal=True)

    def _asked(self, point: Point) -> Comparison:
        kind = self.kind
        warm = (*kind.warm, f"optimizer.lr={kind.warm_lr}") if point.warm_start else ()
        return _asked(self.file, point, self.size, warm)


@cache
def _asked(file: Path, point: Point, size: Size, warm: tuple[str, ...]) -> Comparison:
    methods = ["base", "lora", "dp-lora", *(["warm-start"] if warm else [])]
    overrides = [*point.overrides, *warm, *size.overrides]
    return Comparison.of(file, overrides, parse_variants(methods, []), 1)


def _trial(asked: Comparison, method: str, seed: int) -> Trial:
    (variant,) = (variant for variant in asked.variants if variant.method == method)
    return asked.trial(variant, (), seed)


def train(entries: Sequence[Entry], runner: Runner) -> None:
    """Run what these entries need and what has not been run yet."""
    trials = [trial for entry in entries for trial in entry.trials.values()]
    runner.results([trial.before for trial in trials])  # first, the models with which sites go on
    runner.results(trials)


def measured(entry: Entry, out: Path) -> dict[str, Any]:
    """Return the losses of all models of an entry whose runs are done.

    They are kept for later calls.

    Raises:
        RunError: one of the runs failed.
    """
    trials, folder = entry.trials, out / "runs"
    keys = {name: trial.key for name, trial in trials.items()}
    path = out / "points" / f"{entry.name}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if before.get("format") == FORMAT and before.get("keys") == keys:
        found: dict[str, Any] = before["losses"]
        return found
    results = {name: told(trial, folder) for name, trial in trials.items()}
    for name, result in results.items():
        if result is None or result.error:
            why = "not run" if result is None else result.error
            raise RunError(f"{entry.name}: {name}: {why}")
    values = {name: np.load(values_path(trial, folder)) for name, trial in trials.items()}
    private = results["federated"]
    assert private is not None
    config = trials["federated"].config
    with WorkerPool(1).borrow(job_recipe(config)) as worker:
        found = {
            **_terms(entry, private.noise_multiplier, config.privacy),
            "trained": worker.vector.size,
            **_losses(entry, worker, values),
        }
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"format": FORMAT, "keys": keys, "losses": found})
    return found


def _terms(entry: Entry, noise_multiplier: float | None, privacy: PrivacySection) -> dict[str, Any]:
    point, secure = entry.point, entry.point.trust == "secure-sum"
    return {
        "kind": entry.kind.name,
        "sites": point.sites,
        "records": point.records,
        "epsilon": point.epsilon,
        "delta": privacy.delta,
        "trust": point.trust,
        "max_colluding": COLLUDING if secure else None,
        "sample_rate": privacy.sample_rate,
        "rounds": entry.size.rounds_of(entry.kind),
        "noise_multiplier": noise_multiplier,
        "warm_start": point.warm_start,
        "seed": entry.seed,
    }


def _losses(entry: Entry, worker: Worker, values: Mapping[str, Vector]) -> dict[str, Any]:
    """Score models on each scored site's held-out records.

    Models that every site has are also scored on everyone's records.
    """
    config = entry.trials["federated"].config
    parts = evaluation_records(config, worker.base.tokenizer)
    everyone = [example for part in parts for example in part]
    own: dict[str, list[float]] = {}
    of_all: dict[str, float] = {}
    sites = own_examples(config, worker)
    for index, site in enumerate(sites.values()):
        held_out = [*site.reported, *site.tuning]  # nothing is chosen by these records
        for name, model in models(worker, values, index).items():
            own.setdefault(name, []).append(model(held_out).eval_loss)
            if index == 0 and name in ONE_FOR_ALL:
                of_all[name] = model(everyone).eval_loss
    return {"scored": len(sites), "own": own, "all": of_all}


def weighed(worker: Worker, own: Vector, federated: Vector, weight: float) -> Model:
    """Join the two models. The federated one has this weight."""
    return together(worker, own_and_federated([own], federated, weight))


ONE_FOR_ALL = ("base", "federated", "lora")  # every site has the same


def models(worker: Worker, values: Mapping[str, Vector], site: int) -> dict[str, Model]:
    """Return the models that a site may answer with.

    Args:
        values: values by the names of `Entry.trials`: (P,) for a federation, (scored sites, P)
            otherwise.
        site: the site's number among the scored ones.
    """
    alone, federated = values["alone"][site], values["federated"]
    personal = values["federated+personal"][site]
    found: dict[str, Model] = {
        "base": as_it_is(worker, worker.initial),
        "alone": as_it_is(worker, alone),
        "federated": as_it_is(worker, federated),
        "federated+personal": as_it_is(worker, personal),
        "federated+both": together(worker, own_and_federated([alone, personal], federated, FIFTH)),
        "federated+fifth": weighed(worker, alone, federated, FIFTH),
        "alone+alone": weighed(worker, alone, values["again"][site], 0.5),
    }
    if "lora" in values:
        lora = values["lora"]
        found["lora"] = as_it_is(worker, lora)
        found["lora+personal"] = as_it_is(worker, values["lora+personal"][site])
        found["lora+fifth"] = weighed(worker, alone, lora, FIFTH)
    return found
