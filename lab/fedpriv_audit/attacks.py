"""What trained models give away about the records that they were trained on, and about canaries."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from fedpriv.auditing.result import Measure, World, WorldName
from fedpriv.data.spec import DataSpec
from fedpriv.models.vector import Vector
from fedpriv.plain_training.scores import scored
from fedpriv.private_training.worker import Worker
from fedpriv_audit import exposure, membership
from fedpriv_audit.canaries import Canary
from fedpriv_audit.membership import Coins, Scores
from fedpriv_audit.one_run import OneRun, audit
from fedpriv_audit.training import TIMES, Trained
from fedpriv_audit.two_worlds import CONFIDENCE
from fedpriv_audit.units import AuditedUnit, canary_row, examples_of

LOW_RATE = 0.05  # rate of false accusations
OFTEN = sorted(set(TIMES))
CHANCE = 0.01  # what was found of secrets is no chance below this probability


class Attacker:
    """Attack models by the losses that they have on known records.

    Args:
        worker: the worker that holds the job's model.
        spec: how records become examples.
        units: units whose membership is in question.
    """

    def __init__(self, worker: Worker, spec: DataSpec, units: Sequence[AuditedUnit]) -> None:
        self._worker, self._spec = worker, spec
        tokenizer = worker.base.tokenizer
        found = [examples_of(spec, unit.rows, tokenizer) for unit in units]
        self._examples = [example for examples in found for example in examples]
        owner = [place for place, examples in enumerate(found) for _ in examples]
        self._owner = np.array(owner, dtype=int)
        self._counts = np.bincount(self._owner, minlength=len(units))
        self.base = self.losses(worker.initial)

    def losses(self, values: Vector) -> Scores:
        """Return the mean loss of each unit's records, (N,)."""
        losses = scored(self._worker, self._examples, values).means
        total = np.bincount(self._owner, losses, minlength=len(self._counts))
        return np.asarray(total / np.maximum(1, self._counts))

    def fallen(self, values: Sequence[Vector]) -> Scores:
        """Return how far the losses of models fell from the base model's, (K, N)."""
        return np.asarray(self.base - np.stack([self.losses(one) for one in values]))

    def secrets(self, values: Vector, canaries: Sequence[Canary]) -> list[tuple[int, float]]:
        """Return how often each canary was inserted, and its exposure."""
        spec, tokenizer = self._spec, self._worker.base.tokenizer
        examples = [
            example
            for canary in canaries
            for secret in (canary.secret, *canary.others)
            for example in examples_of(spec, [canary_row(spec, canary.prompt, secret)], tokenizer)
        ]
        before = scored(self._worker, examples, self._worker.initial).means
        falls = before - scored(self._worker, examples, values).means
        parts = falls.reshape(len(canaries), -1)
        return [
            (canary.times, exposure.exposure(part))
            for canary, part in zip(canaries, parts, strict=True)
        ]


def membership_world(name: WorldName, trained: Trained, fallen: Scores, delta: float) -> World:
    """Measure what the models of one world give away about who is in their halves.

    The bound on ε is that of the one-run audit: each model has coins of its own. The result is the
    best bound of all models, which share the error among them.

    Args:
        fallen: (K, N), how far these models' losses fell below the base model's.
    """
    inside, count = trained.inside, len(trained.values)
    scores = membership.against_references(fallen, inside)
    each = 1 - (1 - CONFIDENCE) / count
    bounds = [audit(one, coins, delta, each) for one, coins in zip(scores, inside, strict=True)]
    best: OneRun = max(bounds, key=lambda one: one.epsilon_lower)
    area = _area("AUC", scores, inside)
    return World(
        name=name,
        private=trained.epsilon is not None,
        epsilon=trained.epsilon,
        epsilon_lower=best.epsilon_lower,
        found=area.low is not None and area.low > 0.5,
        wanted=name == "no-noise",
        trials={"models": count, "units": inside.shape[1], "members": int(inside.sum())},
        measures=(
            area,
            _area("AUC by the base model alone", fallen, inside),
            _found(scores, inside),
        ),
    )


def run_world(scores: Scores, plain: Scores, inside: Coins, epsilon: float) -> World:
    """Measure what a run's adapter gives away about its sites' records.

    They are compared with records that the adapter never saw. These other records are from another
    source, so the base model alone may tell the two kinds apart. How well it does so is a measure
    of its own. No bound on ε follows.

    Args:
        scores: (N,) calibrated scores.
        plain: (N,) losses of the base model.
        epsilon: the run's own claim.
    """
    area = _area("AUC", scores, inside)
    plainly = _area("AUC of the untrained base model", -plain, inside)
    return World(
        name="run",
        private=True,
        epsilon=epsilon,
        epsilon_lower=None,
        found=area.low is not None and area.low > 0.5,
        wanted=False,
        trials={"units": inside.size, "members": int(inside.sum())},
        measures=(area, _found(scores, inside), plainly),
    )


def exposure_world(
    name: WorldName, trained: Trained, found: list[tuple[int, float]], candidates: int
) -> World:
    """Measure what the models of one world give away about their canaries' secrets.

    Args:
        found: figures of all canaries of all models, see `Attacker.secrets`.
    """
    expected = exposure.expected_by_chance(candidates)
    bits, chances = [], []
    for times in OFTEN:
        ranked = [bits_of for often, bits_of in found if often == times]
        mean = statistics.fmean(ranked)
        chance = exposure.by_chance(mean, len(ranked), candidates)
        bits.append(Measure(name=f"bits, inserted ×{times}", value=mean, by_chance=expected))
        chances.append(Measure(name=f"chance of as many, ×{times}", value=chance))
    return World(
        name=name,
        private=trained.epsilon is not None,
        epsilon=trained.epsilon,
        found=any(one.value < CHANCE / len(OFTEN) for one in chances),
        wanted=name == "no-noise",
        trials={"models": len(trained.values), "canaries": len(found), "candidates": candidates},
        measures=(*bits, *chances),
    )


def _area(name: str, scores: Scores, inside: Coins) -> Measure:
    low, high = membership.interval(membership.area, scores, inside)
    value = membership.area(scores.ravel(), inside.ravel())
    return Measure(name=name, value=value, low=low, high=high, by_chance=0.5)


def _found(scores: Scores, inside: Coins) -> Measure:
    value, low, high = membership.true_positives(scores.ravel(), inside.ravel(), LOW_RATE)
    name = f"true positives at {LOW_RATE:.0%} false"
    return Measure(name=name, value=value, low=low, high=high, by_chance=LOW_RATE)
