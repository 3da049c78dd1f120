"""A site's own model and the federation's answer together: against sums by hand."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.personal.together import mean_of_probabilities, score_sets
from fedpriv.plain_training.scores import Scores, logits_of, score
from fedpriv.private_training.record_loss import next_tokens
from fedpriv.private_training.worker import Worker
from tests.arithmetic import Rounded

OWN = torch.tensor([0.0, math.log(3)])  # probabilities of 1/4 and 3/4
FEDERATED = torch.tensor([math.log(9), 0.0])  # 9/10 and 1/10


@pytest.fixture(scope="module")
def records() -> list[Example]:
    drawn = random.Random(0)
    made = [[drawn.randint(3, 9) for _ in range(drawn.randint(4, 20))] for _ in range(7)]
    return [Example(ids, ids) for ids in made]


def adapters(worker: Worker) -> tuple[Vector, Vector]:
    drawn = np.random.default_rng(2)
    one, other = (drawn.standard_normal(worker.initial.size, dtype=np.float32) for _ in range(2))
    return 0.5 * one, 0.5 * other


def together(worker: Worker, records: list[Example], one: Vector, other: Vector) -> Scores:
    models, weights = {"one": one, "other": other}, {"one": 0.7, "other": 0.3}
    return score_sets(worker, records, models, {"": weights})[""].scores


def test_two_labels_are_mixed_as_by_hand() -> None:
    found = mean_of_probabilities([OWN, FEDERATED], [0.8, 0.2]).exp()
    assert found.tolist() == pytest.approx([0.8 * 0.25 + 0.2 * 0.9, 0.8 * 0.75 + 0.2 * 0.1])
    assert found.sum() == pytest.approx(1)


@pytest.mark.parametrize(("weight", "alone"), [(1e-6, OWN), (1 - 1e-6, FEDERATED)])
def test_towards_the_ends_it_is_one_of_the_two(weight: float, alone: torch.Tensor) -> None:
    found = mean_of_probabilities([OWN, FEDERATED], [1 - weight, weight])
    assert found.tolist() == pytest.approx(alone.log_softmax(-1).tolist(), abs=1e-5)


def test_what_is_next_to_impossible_for_both_has_a_finite_loss() -> None:
    """Where a float32 holds the logarithm of a probability, and not the probability."""
    sure = torch.tensor([0.0, -200.0])
    assert mean_of_probabilities([sure, sure], [0.7, 0.3])[1] == pytest.approx(-200)


def test_three_are_mixed_as_by_hand() -> None:
    found = mean_of_probabilities([OWN, FEDERATED, OWN], [0.4, 0.2, 0.4]).exp()
    assert found.tolist() == pytest.approx([0.8 * 0.25 + 0.2 * 0.9, 0.8 * 0.75 + 0.2 * 0.1])


@pytest.mark.parametrize(
    "weights", [[0.0, 1.0], [1.0, 0.0], [-0.1, 1.1], [math.nan, 0.5], [0.4, 0.4], [0.8, 0.4], []]
)
def test_weights_that_make_no_mean_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights: expected numbers above 0 whose sum is 1"):
        mean_of_probabilities([OWN, FEDERATED], weights)


def test_each_model_has_a_weight() -> None:
    with pytest.raises(ValueError, match="shorter"):
        mean_of_probabilities([OWN, FEDERATED], [1.0])


def test_a_model_that_answers_with_itself_is_that_model(
    worker: Worker, records: list[Example]
) -> None:
    one, _ = adapters(worker)
    expected = Rounded(lambda: score(worker, records, one).eval_loss)
    found = together(worker, records, one, one)
    assert expected.off_by(found.eval_loss) <= 1
    assert found.eval_accuracy == score(worker, records, one).eval_accuracy


def test_two_models_answer_with_the_mean_of_their_probabilities(
    worker: Worker, records: list[Example]
) -> None:
    """Token by token, against probabilities that are added up by hand."""
    one, other = adapters(worker)

    def by_hand() -> float:
        losses = []
        for example in records:
            batch = worker.batch([example], worker.recipe.model.max_length)
            mean = torch.zeros(())
            for values, share in ((one, 0.7), (other, 0.3)):
                worker.vector.write(values)
                with torch.no_grad():
                    mean = mean + share * logits_of(worker, batch).softmax(-1)
            targets = next_tokens(batch.labels)
            losses += [
                -math.log(mean[0, place, target])
                for place, target in enumerate(targets[0].tolist())
                if target >= 0
            ]
        return sum(losses) / len(losses)

    found = together(worker, records, one, other).eval_loss
    assert Rounded(by_hand).off_by(found) <= 1
    apart = [score(worker, records, values).eval_loss for values in (one, other)]
    assert found != pytest.approx(apart[0], abs=1e-3)
    assert found < 0.7 * apart[0] + 0.3 * apart[1]  # Jensen's inequality
