"""A site's own model and the federation's answer together: the mean of their probabilities.

`mean_of_probabilities` is all there is to it, for whoever runs the two models at the same time:
it takes what both answer to the same input. There is no file format for such a pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from fedpriv.data.batch import Batch
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.training.scores import Scores, logits_of, score_answers
from fedpriv.training.worker import Worker

Model = Callable[[Sequence[Example]], Scores]  # scores records, at least one


def mean_of_probabilities(
    own: torch.Tensor, federated: torch.Tensor, weight: float
) -> torch.Tensor:
    """What two models answer together.

    Args:
        own, federated: logits of the site's own model and of the federation's, for the same input
            and with the same vocabulary or labels: (..., V) each.
        weight: of the federation's probabilities, above 0 and below 1; the own ones have the rest.

    Returns:
        Logarithms of the mean probabilities, (..., V). They are logits, too.

    Raises:
        ValueError: the weight is out of its bounds, or the shapes differ.

    Privacy:
        As confidential as the own model: it is for the site alone.
    """
    if not 0 < weight < 1:
        raise ValueError(f"weight: expected a number above 0 and below 1, got {weight}")
    if own.shape != federated.shape:
        raise ValueError(
            f"federated: expected the shape {tuple(own.shape)} of own, got {tuple(federated.shape)}"
        )
    mine = own.log_softmax(-1) + math.log(1 - weight)
    return torch.logaddexp(mine, federated.log_softmax(-1) + math.log(weight))


def together(worker: Worker, own: Vector, federated: Vector, weight: float) -> Model:
    """Two models by their trained values (P,) that answer together; the weight is of the second.

    Privacy:
        As confidential as the own values and the records that it scores: for the site alone.
    """

    def answer(batch: Batch) -> torch.Tensor:
        worker.vector.write(own)
        found = logits_of(worker, batch)
        worker.vector.write(federated)
        for mine, theirs in zip(found, logits_of(worker, batch), strict=True):
            mine.copy_(mean_of_probabilities(mine, theirs, weight))  # logits are large: one by one
        return found

    return lambda examples: score_answers(worker, examples, answer)
