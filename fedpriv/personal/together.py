"""A site's own models and the federation's answer together: the mean of their probabilities.

`mean_of_probabilities` is all there is to it, for whoever runs the models at the same time: it
takes what they answer to the same input. `fedpriv.serving` runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from fedpriv.data.batch import Batch
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.plain_training.scores import Scores, logits_of, score_answers
from fedpriv.private_training.worker import Worker

Named = TypeVar("Named")
Model = Callable[[Sequence[Example]], Scores]  # scores records, at least one


def mean_of_probabilities(
    answers: Sequence[torch.Tensor], weights: Sequence[float]
) -> torch.Tensor:
    """What several models answer together.

    Args:
        answers: logits of each model for the same input, with the same vocabulary or labels:
            (..., V) each.
        weights: of each model's probabilities, above 0; their sum is 1.

    Returns:
        Logarithms of the mean probabilities, (..., V). They are logits, too.

    Raises:
        ValueError: the weights are none of this kind, or not as many, or the shapes differ.

    Privacy:
        As confidential as a site's own model among them: it is for the site alone.
    """
    _check_weights(weights)
    if len(answers) != len(weights):
        raise ValueError(f"weights: expected one for each of {len(answers)}, got {len(weights)}")
    for other in answers[1:]:
        if other.shape != answers[0].shape:
            raise ValueError(
                f"answers: expected the shape {tuple(answers[0].shape)} of the first, got"
                f" {tuple(other.shape)}"
            )
    weighted = [
        answer.log_softmax(-1) + math.log(weight)
        for answer, weight in zip(answers, weights, strict=True)
    ]
    total = weighted[0]
    for other in weighted[1:]:
        total = torch.logaddexp(total, other)
    return total


def own_and_federated(
    own: Sequence[Named], federated: Named, weight: float
) -> list[tuple[Named, float]]:
    """Give the federation's model a weight, and own ones equal parts of the rest.

    Args:
        own, federated: trained values, (P,) each, or names of models.
        weight: of the federation's, above 0 and below 1.
    """
    share = (1 - weight) / len(own)
    return [*((values, share) for values in own), (federated, weight)]


def together(worker: Worker, models: Sequence[tuple[Vector, float]]) -> Model:
    """Models that answer together, each by its trained values (P,) and its weight.

    Raises:
        ValueError: a weight is not above 0, or their sum is not 1.

    Privacy:
        As confidential as own values and the records that it scores: for the site alone.
    """
    weights = [weight for _, weight in models]
    _check_weights(weights)

    def answer(batch: Batch) -> torch.Tensor:
        answers = []
        for values, _ in models:
            worker.vector.write(values)
            answers.append(logits_of(worker, batch))
        for rows in zip(*answers, strict=True):  # logits are large: one record by one
            rows[0].copy_(mean_of_probabilities(rows, weights))
        return answers[0]

    return lambda examples: score_answers(worker, examples, answer)


def _check_weights(weights: Sequence[float]) -> None:
    if not (weights and all(weight > 0 for weight in weights) and math.isclose(sum(weights), 1)):
        raise ValueError(f"weights: expected numbers above 0 whose sum is 1, got {list(weights)}")
