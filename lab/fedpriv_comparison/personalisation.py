"""Ways for a site to use a federated adapter with its own records, to compare them.

The first is what `fedpriv-client personalise` does; the other is here for the tables of
docs/results.md alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.config.personal import OwnTraining
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.personal.records import OwnParts
from fedpriv.personal.together import Model, own_and_federated, together
from fedpriv.personal.training import train_alone
from fedpriv.plain_training.scores import Scores, score
from fedpriv.private_training.worker import Worker

PERSONAL, FIFTH = "personal", "fifth"
WAYS = {
    PERSONAL: "the adapter is trained further",
    FIFTH: "a model is trained without it, and beside that it has a fifth of the weight",
}
WEIGHT = 0.2


def go_on(
    way: str,
    worker: Worker,
    federated: Vector,
    records: OwnParts,
    settings: OwnTraining,
    seed: int,
    own: Vector | None = None,
) -> tuple[Model, str]:
    """The model that a site makes of an adapter (P,), one of `WAYS`, and how it was trained.

    Args:
        own: (P,), what it has trained from the base model, where it is at hand; for `fifth`.

    Privacy:
        None: trained on raw records. For public ones, or for the site alone.
    """
    said = ""
    if own is None or way == PERSONAL:
        start = federated if way == PERSONAL else worker.initial
        made = train_alone(worker, start, records, settings, seed=seed)
        own, said = made.values, made.best.said
    if way == FIFTH:
        return weighed(worker, own, federated, WEIGHT), said
    return AsItIs(worker, own), said


@dataclass(frozen=True, eq=False)
class AsItIs:
    """A model with these trained values (P,)."""

    worker: Worker
    values: Vector

    def __call__(self, examples: Sequence[Example]) -> Scores:
        """Its scores on records."""
        return score(self.worker, examples, self.values)


def weighed(worker: Worker, own: Vector, federated: Vector, weight: float) -> Model:
    """The two together, the federated one with this weight.

    Privacy:
        None, as `go_on`.
    """
    return together(worker, own_and_federated([own], federated, weight))
