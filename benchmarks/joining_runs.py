"""What is trained for a point of `benchmarks/joining.py`, and what its models are worth."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from frozen_prefix import remember
from joining_data import FEW, OUTSIDE, ROUNDS, Kind, sample_rate, scored_sites
from mixtures import own_and_federated, together

from fedpriv.config.personal import OwnTraining
from fedpriv.data.encode import Example, encode_record
from fedpriv.data.spec import DataSpec
from fedpriv.errors import RunError
from fedpriv.files import replacing, write_json
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.personal.records import OwnParts
from fedpriv.personal.training import choose, train_alone
from fedpriv.private_training.pool import Inspect, WorkerPool
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv_comparison.comparison import Comparison
from fedpriv_comparison.held_out_scores import as_it_is
from fedpriv_comparison.records import alone
from fedpriv_comparison.trial import Result, Trial, run, values_path
from fedpriv_comparison.variants import parse_variants
from fedpriv_server.own_records import spec_of
from fedpriv_simulation import joint

Epochs = tuple[float, int]  # rate and passes
Records = list[list[Example]]  # the examples of each record
TOGETHER, TOGETHER_ON_A_GPU = 32, 128  # records at once
FIFTH = 0.2  # the weight of the federation's model beside a site's own
TUNING = 0  # the seed that rates are chosen with; reported seeds count from 1


@dataclass(frozen=True)
class Point:
    """Describe a federation to measure, with one seed.

    Attributes:
        sites, records: how many sites, and how many records each trains on.
        trust: who adds the noise. A secure sum has an honest majority.
        epsilon: ε of each site for the whole job.
        ceiling: whether the same is also trained without noise.
    """

    kind: Kind
    sites: int
    records: int
    trust: str = "secure-sum"
    epsilon: float = 4.0
    seed: int = 1
    ceiling: bool = False

    @property
    def folder(self) -> str:
        """Return the folder of its federation, which all points with these records share."""
        return f"{self.kind.name}-{self.sites}x{self.records}"

    @property
    def name(self) -> str:
        """Return the point's name, as on the command line."""
        return f"{self.folder}-{self.trust.partition('-')[0]}-{self.epsilon:g}-{self.seed}"


class AnySize(dict[tuple[int, int, int], Sequence[int]]):
    """Allow batches of any size. On public data nobody minds whose bits they change."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: tuple[int, int, int]) -> Sequence[int]:
        return range(key[0], 0, -1)


def allow_any_size() -> None:
    """Let the sites of a simulation also compute joint batches of any size."""
    joint.invariant_sizes = lambda worker, most, length: range(most, 0, -1)


class Pool(WorkerPool):
    """Lend workers that compute frozen layers once for each record, and records together."""

    @contextmanager
    def borrow(self, recipe: ModelRecipe, look: Inspect | None = None) -> Iterator[Worker]:
        """Lend a worker as `WorkerPool.borrow` does."""
        with super().borrow(recipe, look) as worker:
            remember(worker)
            together = TOGETHER if worker.device == "cpu" else TOGETHER_ON_A_GPU
            worker.microbatches["private"], worker.invariant_sizes = together, AnySize()
            yield worker


class Study:
    """Train and score. What is kept in its folder is not done again.

    Args:
        file: federation file of a point.
        kept: folder of runs and of trained values.
        overrides: KEY=VALUE texts for all runs.
    """

    def __init__(self, file: Path, kept: Path, overrides: Sequence[str] = ()) -> None:
        self.folder, self.kept = file.parent, kept
        self._file, self._overrides = file, tuple(overrides)
        self._pool = Pool(1, many_sites=True)
        self._config = self.trial("base", (), 1).config
        self._initial: dict[int, Vector] = {}

    def trial(self, method: str, terms: Sequence[str], seed: int, site: int | None = None) -> Trial:
        """Return a run of all sites together, or of one site by itself."""
        variants = parse_variants([method], [])
        asked = Comparison.of(self._file, [*terms, *self._overrides], variants, 1)
        trial = asked.trial(variants[0], (), seed)
        return trial if site is None else replace(trial, config=alone(trial.config, f"site-{site}"))

    def initial(self, seed: int) -> Vector:
        """Return the values before any training, (P,), for a seed."""
        if seed not in self._initial:
            job = self._config.job.model_copy(update={"seed": seed})
            recipe = job_recipe(self._config.model_copy(update={"job": job}))
            with self._pool.borrow(recipe) as worker:
                self._initial[seed] = worker.initial
        return self._initial[seed]

    def trained(self, trial: Trial) -> tuple[Result, Vector]:
        """Return the result of a run, and its values (P,).

        Raises:
            RunError: the run failed.
        """
        result = run(trial, self.kept, self._pool)
        if result.error:
            raise RunError(f"{trial.key}: {result.error}")
        return result, np.load(values_path(trial, self.kept))

    @contextmanager
    def worker(self, terms: Sequence[str] = ()) -> Iterator[Worker]:
        """Lend a worker of this model, or of the model that these terms make of it."""
        config = self.trial("base", terms, 1).config if terms else self._config
        with self._pool.borrow(job_recipe(config)) as worker:
            yield worker

    @property
    def spec(self) -> DataSpec:
        """Return how a record is read."""
        return spec_of(self._config)

    def rows(self, name: str) -> list[dict[str, str]]:
        """Return the records of a file, by field."""
        fields = {column: field for field, column in self.spec.columns.items()}
        with (self.folder / f"{name}.jsonl").open() as lines:
            rows = [json.loads(line) for line in lines]
        return [{fields.get(key, key): value for key, value in row.items()} for row in rows]

    def examples(self, worker: Worker, name: str, windows: int = 1) -> Records:
        """Return the examples of each record of a file, at most `windows` of each."""
        spec = replace(self.spec, max_records_per_unit=windows)
        tokenizer = worker.base.tokenizer
        return [
            encode_record(record, spec, tokenizer, row=number, source=name)
            for number, record in enumerate(self.rows(name), 1)
        ]

    def own(
        self, worker: Worker, start: Vector, records: Records, chosen: Epochs, seed: int
    ) -> Vector:
        """Train a site's own model, (P,). It is kept under a name made of all that decides it."""
        rate, passes = chosen
        said = repr((start.tobytes(), records, chosen, seed)).encode()
        path = self.kept / f"own-{hashlib.sha256(said).hexdigest()[:16]}.npy"
        if not path.exists():
            parts, training = OwnParts((joined(records),), 0), OwnTraining((rate,), 8, passes, 1)
            made = train_alone(worker, start, parts, training, seed=seed)
            with replacing(path) as new, new.open("wb") as stream:
                np.save(stream, made.values)
        return np.load(path)


def joined(records: Sequence[list[Example]]) -> list[Example]:
    """Join the examples of all records."""
    return [example for own in records for example in own]


@dataclass(frozen=True)
class Tuned:
    """Hold settings that were chosen for the points of one size.

    Attributes:
        federation, single: rate → loss on records to choose by, for all sites and for one.
        own: rate and passes of own training, first from the base model, then from the federation's.
            The key is a site that takes part, or how many records a new site has.
    """

    federation: dict[str, float]
    single: dict[str, float]
    own: dict[str, tuple[Epochs, Epochs]]

    @property
    def rates(self) -> tuple[str, str]:
        """Return the best rate of both."""
        return min(self.federation, key=self.federation.__getitem__), min(
            self.single, key=self.single.__getitem__
        )


def tuned(study: Study, point: Point, path: Path, of_kind: Path | None) -> Tuned:
    """Choose the settings of a size, or those that are not in its file yet.

    Args:
        of_kind: the file of a smaller size, if its rates are taken.
    """
    found = json.loads(path.read_text()) if path.exists() else {}
    kind, scored = point.kind, scored_sites(point.sites)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not found and of_kind is not None:
        before = json.loads(of_kind.read_text())
        found = {name: before[name] for name in ("federation", "single")}
    if not found:
        rates, federation, single = [f"{rate:g}" for rate in kind.rates], {}, {}
        for rate in rates:
            trial = study.trial("dp-lora", [*terms_of(point), f"optimizer.lr={rate}"], TUNING)
            federation[rate] = float(study.trained(trial)[0].last("tuning_loss") or 0)
        for rate in [*rates, f"{2 * kind.rates[-1]:g}"]:
            said = [*LOCAL, _single_rate(point), f"optimizer.lr={rate}"]
            trial = study.trial("dp-lora", said, TUNING, scored[0])
            single[rate] = float(study.trained(trial)[0].last("tuning_loss") or 0)
        found = {"federation": federation, "single": single}
    own = found.setdefault("own", {})
    write_json(path, found)
    if len(own) == len(scored) + len(FEW):
        return Tuned(**found)
    best = min(found["federation"], key=found["federation"].__getitem__)
    asked = study.trial("dp-lora", [*terms_of(point), f"optimizer.lr={best}"], TUNING)
    starts = (None, study.trained(asked)[1])
    with study.worker() as worker:
        public, everyone = (study.examples(worker, name) for name in ("public", "everyone"))
        cases = {str(n): (public[:n], everyone) for n in (*FEW[1:], len(public))}
        for name in (f"site-{site}" for site in scored):
            records = study.examples(worker, name)
            quarter = len(records) // 4
            cases[name] = records[quarter:], records[:quarter]
        for name in (name for name in cases if name not in own):
            training, judged = cases[name]
            parts = OwnParts((joined(judged), joined(training)), 1)
            settings = OwnTraining(kind.own_rates, 8, kind.own_passes, 2)
            both = []
            for start in starts:
                begun = worker.initial if start is None else start
                epoch, _ = choose(worker, begun, parts, settings, seed=TUNING)
                both.append((epoch.rate, epoch.number))
            own[name] = both
            write_json(path, found)
    return Tuned(**json.loads(path.read_text()))


LOCAL = ("privacy.trust=local", "privacy.epsilon=4")


def terms_of(point: Point) -> list[str]:
    """Return the terms of a point, for a federation file."""
    return [f"privacy.epsilon={point.epsilon:g}", f"privacy.trust={point.trust}"]


def measured(study: Study, point: Point, chosen: Tuned) -> dict[str, Any]:
    """Measure the losses of all models of a point."""
    rate, rate_single = chosen.rates
    terms = terms_of(point)
    trial = study.trial("dp-lora", [*terms, f"optimizer.lr={rate}"], point.seed)
    result, federated = study.trained(trial)
    lora = None
    if point.ceiling:
        common = terms_of(replace(point, trust="secure-sum", epsilon=4.0))
        lora = study.trained(study.trial("lora", [*common, f"optimizer.lr={rate}"], point.seed))[1]
    said = ["privacy.trust=local", f"privacy.epsilon={point.epsilon:g}"]
    said += [f"optimizer.lr={rate_single}", _single_rate(point)]
    singles = [
        study.trained(study.trial("dp-lora", said, point.seed, site))[1]
        for site in scored_sites(point.sites)
    ]
    privacy = trial.config.privacy
    initials = [study.initial(seed) for seed in (point.seed, point.seed + 1)]
    with study.worker() as worker:
        own = _own(study, worker, point, chosen, initials, federated, lora)
        outside, new = _outside(study, worker, point, chosen, federated, lora, singles)
    return {
        "kind": point.kind.name,
        "sites": point.sites,
        "records": point.records,
        "unit": point.kind.unit,
        "epsilon": point.epsilon,
        "delta": privacy.delta,
        "trust": point.trust,
        "max_colluding": trial.config.max_colluding,
        "sample_rate": privacy.sample_rate,
        "rounds": ROUNDS,
        "noise_multiplier": result.noise_multiplier,
        "warm_start": False,
        "seed": point.seed,
        "scored": len(scored_sites(point.sites)),
        "bytes_up": result.bytes_up,
        "trained": int(federated.size),
        "own": own,
        "outside": outside,
        "new": new,
    }


def _single_rate(point: Point) -> str:
    """Return the sample rate of a hospital that trains by itself."""
    return f"privacy.sample_rate={sample_rate(point.kind, point.records):.4g}"


def _own(
    study: Study, worker: Worker, point: Point, chosen: Tuned, initials: Sequence[Vector],
    federated: Vector, lora: Vector | None,
) -> dict[str, list[float]]:  # fmt: skip
    """Measure each scored site's own patients: the loss of each model that it may answer with."""
    found: dict[str, list[float]] = {}
    for site in scored_sites(point.sites):
        from_base, from_other = chosen.own[f"site-{site}"]
        records = study.examples(worker, f"site-{site}")
        apart = joined(study.examples(worker, f"own-{site}"))
        alone_, again = (
            study.own(worker, initial, records, from_base, point.seed) for initial in initials
        )
        further = study.own(worker, federated, records, from_other, point.seed)
        models = {
            "base": as_it_is(worker, worker.initial),
            "alone": as_it_is(worker, alone_),
            "alone+alone": together(worker, own_and_federated([alone_], again, 0.5)),
            "federated": as_it_is(worker, federated),
            "federated+personal": as_it_is(worker, further),
            "federated+fifth": together(worker, own_and_federated([alone_], federated, FIFTH)),
            "federated+both": together(
                worker, own_and_federated([alone_, further], federated, FIFTH)
            ),
        }
        if lora is not None:
            models["lora"] = as_it_is(worker, lora)
        for name, model in models.items():
            found.setdefault(name, []).append(model(apart).eval_loss)
    return found


def _outside(
    study: Study, worker: Worker, point: Point, chosen: Tuned, federated: Vector,
    lora: Vector | None, singles: Sequence[Vector],
) -> tuple[dict[str, list[float]], dict[str, dict[str, list[float]]]]:  # fmt: skip
    """Measure sites that took no part: the loss of what they get, and of what they make of it.

    The best single hospital is the one whose adapter is best on other records of that site.
    """
    public = study.examples(worker, "public")
    begun = study.own(worker, worker.initial, public, chosen.own[str(len(public))][0], point.seed)
    outside: dict[str, list[float]] = {}
    new: dict[str, dict[str, list[float]]] = {}
    for index in range(OUTSIDE):
        apart = study.examples(worker, f"apart-{index}")
        choosing = joined(apart[: point.kind.apart.choose])
        reported = joined(apart[point.kind.apart.choose :])
        losses = [as_it_is(worker, values)(choosing).eval_loss for values in singles]
        starts: dict[str, Vector] = {
            "base": worker.initial,
            "single": singles[int(np.argmin(losses))],
            "warm-start": begun,
            "federated": federated,
        }
        if lora is not None:
            starts["lora"] = lora
        records = study.examples(worker, f"outside-{index}")
        for name, start in starts.items():
            for count in FEW if name != "lora" else (0,):
                values = start
                if count:
                    passes = chosen.own[str(count)][name != "base"]
                    values = study.own(worker, start, records[:count], passes, point.seed)
                loss = as_it_is(worker, values)(reported).eval_loss
                new.setdefault(name, {}).setdefault(str(count), []).append(loss)
            outside.setdefault(name, []).append(new[name]["0"][-1])
    return outside, new


def means(found: Mapping[str, Sequence[float]]) -> str:
    """Write the means of losses by row, to show progress."""
    return "  ".join(f"{name} {np.mean(losses):.3f}" for name, losses in found.items())
