"""Choose by a site's own records which of its models answer together, and with which weights.

Each model is scored on records that it was not trained on: a part of the site's units was left out,
and a model was trained without it. Held-out records, which judge the result, choose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedpriv.models.vector import Vector
from fedpriv.names import OwnKind
from fedpriv.personal.records import OwnParts
from fedpriv.personal.together import Weights, score_sets
from fedpriv.personal.training import Personal
from fedpriv.plain_training.scores import Numbers, Scored
from fedpriv.private_training.worker import Worker

MODELS = ("alone", "personal", "federated")
SHARES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8)  # of the federation's model, to choose from


@dataclass(frozen=True)
class Answer:
    """Hold which models answer, and what that was chosen by.

    Attributes:
        weights: weights of the models that answer. Their sum is 1.
        losses: losses of each set of models on records that were left out; empty where none were.
        spread: how far the losses of two trainings with different seeds are apart there (a standard
            deviation).
    """

    weights: Weights
    losses: Mapping[str, float]
    spread: float


def title(names: Sequence[str]) -> str:
    """Name a set of models."""
    return "all three" if len(names) == len(MODELS) else " + ".join(names)


def sets_of(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return every set of the named models that a site could keep, the smallest first."""
    there = [name for name in MODELS if name in names]
    return [one for count in range(1, len(there) + 1) for one in combinations(there, count)]


def weights_of(names: Sequence[str], beside: float) -> Weights:
    """Weigh models.

    The federation's has `beside` of the weight, and own ones share the rest equally.
    """
    own = [name for name in names if name != "federated"]
    if len(own) in (0, len(names)):
        return dict.fromkeys(names, 1 / len(names))
    shares = dict.fromkeys(own, (1 - beside) / len(own))
    return {**shares, "federated": beside}


def choose_answer(
    worker: Worker,
    own: OwnParts,
    trained: Mapping[OwnKind, Personal],
    federated: Vector,
    beside: float,
) -> Answer:
    """Keep the smallest set of models that is as good as the best one.

    A set counts as good if its loss on left-out records is higher by no more than seeds differ by.
    Among sets of one size the better one is taken. If a site has so many units that one part is
    enough, the federation's share of the weight is chosen in the same way. Other sites use the
    rule's share (docs/results/small-clinics.md).

    Args:
        own: the site's records, in parts.
        trained: the models `alone`, `again` and `personal`. The first two differ in their seeds.
        federated: the values (P,) of the federation's adapter.
        beside: the federation's share of the weight, by the rule.

    Privacy:
        None: computed on raw records, and stays at the site.
    """
    if not own.left_out:
        return Answer(weights_of(MODELS, beside), {}, 0.0)
    shares = SHARES if own.left_out == 1 else (beside,)
    kept = {
        (names, share): weights_of(names, share)
        for names in sets_of(MODELS)
        for share in (shares if "federated" in names and len(names) > 1 else (beside,))
    }
    scored: dict[str, list[Scored]] = {}
    sets = {f"{title(names)} {share}": weights for (names, share), weights in kept.items()}
    for index, part in enumerate(own.parts[: own.left_out]):
        models: dict[str, Vector] = {"federated": federated}
        for kind, made in trained.items():
            models[kind] = made.best.without[index]
        found = score_sets(worker, part, models, sets | {"again": {"again": 1.0}})
        for name, one in found.items():
            scored.setdefault(name, []).append(one)
    targets = sum(float(one.targets.sum()) for one in scored["again"])

    def loss(key: tuple[tuple[str, ...], float]) -> float:
        parts = scored[f"{title(key[0])} {key[1]}"]
        return sum(float(one.losses.sum()) for one in parts) / targets

    def losses(name: str) -> Numbers:
        return np.concatenate([one.losses for one in scored[name]])

    spread = seeds_differ(losses(f"alone {beside}"), losses("again"), targets)
    best = {names: min((key for key in kept if key[0] == names), key=loss) for names, _ in kept}
    lowest = min(map(loss, best.values()))
    good = [key for key in best.values() if loss(key) <= lowest + spread]
    answer = min(good, key=lambda key: (len(key[0]), loss(key)))
    return Answer(kept[answer], {title(names): loss(key) for names, key in best.items()}, spread)


def seeds_differ(one: Numbers, other: Numbers, targets: float) -> float:
    """Estimate how far the mean losses of trainings with two seeds differ.

    It is the standard deviation of one such mean. The differences of the records' losses are taken
    as independent, each with the mean 0. Half of a difference's square is then the variance of
    either.

    Args:
        one, other: sums of each record's losses, (N,), for the two seeds.
        targets: number of targets of all records.
    """
    return math.sqrt(float(((one - other) ** 2).sum()) / 2) / targets
