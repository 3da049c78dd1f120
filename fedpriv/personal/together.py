"""A site's own models and the federation's answer together: the mean of their probabilities.

`mean_of_probabilities` is all that is needed by code that runs the models at the same time. It
takes their answers to the same input. A site model (`fedpriv.serving`) does so at each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import torch

from fedpriv.data.batch import Batch
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.plain_training.scores import BATCH, Logits, Scored, Scores, logits_of, score_each
from fedpriv.private_training.worker import Worker

Weights = Mapping[str, float]  # name of a model → share of the probabilities
Model = Callable[[Sequence[Example]], Scores]  # scores records, at least one


def mean_of_probabilities(
    answers: Sequence[torch.Tensor], weights: Sequence[float]
) -> torch.Tensor:
    """Return what several models answer together.

    Args:
        answers: logits of each model for the same input, with the same vocabulary or labels:
            (..., V) each.
        weights: weight of each model's probabilities, above 0. Their sum is 1.

    Returns:
        Logarithms of the mean probabilities, (..., V). They are logits, too.

    Raises:
        ValueError: the weights are not like that, or not as many as the answers.

    Privacy:
        As confidential as a site's own model among them: for the site alone.
    """
    _check_weights(weights)
    weighted = [
        answer.log_softmax(-1) + math.log(weight)
        for answer, weight in zip(answers, weights, strict=True)
    ]
    total = weighted[0]
    for other in weighted[1:]:
        total = torch.logaddexp(total, other)
    return total


def score_sets(
    worker: Worker,
    examples: Sequence[Example],
    models: Mapping[str, Vector],
    sets: Mapping[str, Weights],
    others: Mapping[str, Logits] = MappingProxyType({}),
) -> dict[str, Scored]:
    """Score each set of models that answer together. Each model is computed once.

    Args:
        examples: at least one.
        models: name → trained values (P,).
        sets: title → weights of the models that answer.
        others: title → answers of a model that is not the worker's.

    Privacy:
        As confidential as own values and the records: for the site alone.
    """

    def answers(batch: Batch) -> Iterable[tuple[str, torch.Tensor]]:
        logits = {}
        for name, values in models.items():
            worker.vector.write(values)
            logits[name] = logits_of(worker, batch)
        for name, weights in sets.items():
            several = [logits[one] for one in weights]
            alone = len(several) == 1
            yield name, several[0] if alone else mean_of_probabilities(several, [*weights.values()])
        for name, answer in others.items():
            yield name, answer(batch)

    return score_each(worker, examples, answers, at_once=max(1, BATCH // len(models)))


def _check_weights(weights: Sequence[float]) -> None:
    if not (weights and all(weight > 0 for weight in weights) and math.isclose(sum(weights), 1)):
        raise ValueError(f"weights: expected numbers above 0 whose sum is 1, got {list(weights)}")
