"""Let models answer together, each by its trained values and its weight."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.models.vector import Vector
from fedpriv.personal.together import Model, score_sets
from fedpriv.private_training.worker import Worker


def own_and_federated(
    own: Sequence[Vector], federated: Vector, weight: float
) -> list[tuple[Vector, float]]:
    """Give the federation's model a weight, and own models equal parts of the rest.

    Args:
        own, federated: trained values, (P,) each.
        weight: the federation's weight, above 0 and below 1.
    """
    share = (1 - weight) / len(own)
    return [*((values, share) for values in own), (federated, weight)]


def together(worker: Worker, models: Sequence[tuple[Vector, float]]) -> Model:
    """Return what scores the mean of the models' probabilities. The sum of the weights is 1."""
    named = {str(index): values for index, (values, _) in enumerate(models)}
    shares = {str(index): weight for index, (_, weight) in enumerate(models)}
    return lambda examples: score_sets(worker, examples, named, {"": shares})[""].scores
