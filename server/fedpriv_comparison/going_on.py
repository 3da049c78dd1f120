"""Ways for a site to use a federated adapter with its own records, to compare them.

The first is what `fedpriv-client personalise` does; the others are here for the tables of
docs/results.md alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.config.personal import OwnTraining
from fedpriv.data.encode import Example
from fedpriv.errors import RunError
from fedpriv.models.vector import Vector
from fedpriv.personal.together import Model, own_and_federated, together
from fedpriv.personal.training import train_alone
from fedpriv.training.scores import Scores, score
from fedpriv.training.worker import Worker

WAYS = {
    "personal": "the adapter is trained further",
    "averaged": "a model is trained without it, and the two answer together, weighed by validation",
    "fifth": "the same, and it has a fifth of the weight whatever validation says",
}
TOGETHER = ("averaged", "fifth")
FIFTH = 0.2
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)  # of the federated model, where two answer together


def go_on(
    way: str,
    worker: Worker,
    federated: Vector,
    records: Sequence[Example],
    validation: Sequence[Example],
    settings: OwnTraining,
    seed: int,
    own: Vector | None = None,
) -> Model:
    """The model that a site makes of an adapter (P,), one of `WAYS`.

    Args:
        own: (P,), what it has trained from the base model, where it is at hand; for `TOGETHER`.

    Privacy:
        None: trained on raw records. For public ones, or for the site alone.
    """
    start = worker.initial if way in TOGETHER else federated
    if way not in TOGETHER or own is None:
        own = train_alone(worker, start, records, validation, settings, seed=seed).values
    match way:
        case "averaged":
            return averaged(worker, own, federated, validation)
        case "fifth":
            return weighed(worker, own, federated, FIFTH)
    return AsItIs(worker, own)


@dataclass(frozen=True, eq=False)
class AsItIs:
    """A model with these trained values (P,)."""

    worker: Worker
    values: Vector

    def __call__(self, examples: Sequence[Example]) -> Scores:
        """Its scores on records."""
        return score(self.worker, examples, self.values)


def averaged(
    worker: Worker, own: Vector, federated: Vector, validation: Sequence[Example]
) -> Model:
    """Two models that answer together: the mean of their probabilities.

    The federated one has the weight of `WEIGHTS` that has the lowest loss on the validation
    records; without any weight, it is the site's own.

    Raises:
        RunError: there are no validation records.

    Privacy:
        None, as `go_on`.
    """
    if not validation:
        raise RunError(
            "A site keeps no validation records apart that would choose a weight. Set"
            " personal.validation above 0, or use 'fifth'."
        )
    tried = [weighed(worker, own, federated, weight) for weight in WEIGHTS]
    losses = [model(validation).eval_loss for model in tried]
    return tried[int(np.argmin(losses))]


def weighed(worker: Worker, own: Vector, federated: Vector, weight: float) -> Model:
    """The two together; the own one as it is where the federated one has no weight."""
    if not weight:
        return AsItIs(worker, own)
    return together(worker, own_and_federated([own], federated, weight))
