"""Which models answer, and with which weights: chosen by records that they were not trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from fedpriv.models.vector import Vector
from fedpriv.personal import answering
from fedpriv.personal.answering import (
    MODELS,
    Answer,
    choose_answer,
    seeds_differ,
    sets_of,
    title,
    weights_of,
)
from fedpriv.personal.records import OwnParts
from fedpriv.personal.training import Epoch, Personal
from fedpriv.plain_training.scores import Scored, Scores
from fedpriv.private_training.worker import Worker
from tests.own_parts import in_parts

Losses = Mapping[str, tuple[float, ...]]  # title of a set → of each record, of one target


def test_the_federation_has_its_weight_and_own_models_have_equal_parts() -> None:
    assert weights_of(MODELS, 0.2) == {"alone": 0.4, "personal": 0.4, "federated": 0.2}
    assert weights_of(("alone", "federated"), 0.2) == {"alone": 0.8, "federated": 0.2}
    assert weights_of(("alone", "personal"), 0.2) == {"alone": 0.5, "personal": 0.5}
    assert weights_of(("federated",), 0.2) == {"federated": 1.0}
    assert weights_of(("alone",), 0.2) == {"alone": 1.0}


def test_every_set_is_tried_the_smallest_first() -> None:
    found = sets_of(MODELS)
    assert len(found) == 7 and len({frozenset(one) for one in found}) == 7
    assert [len(one) for one in found] == [1, 1, 1, 2, 2, 2, 3]
    assert sets_of(["base", "alone", "again"]) == [("alone",)]
    assert title(MODELS) == "all three" and title(MODELS[:2]) == "alone + personal"


def chosen(monkeypatch: pytest.MonkeyPatch, losses: Losses, left_out: int = 2) -> Answer:
    """What is chosen where each set has these losses on the records that were left out."""
    own = in_parts((2,) * 4, left_out)
    values = [np.full(3, index, np.float32) for index in range(left_out)]
    trained = Personal(values[0], Epoch(0.1, 1, 1.0, tuple(values)))

    def scored(
        worker: Worker,
        part: object,
        models: Mapping[str, Vector],
        sets: Mapping[str, Mapping[str, float]],
    ) -> dict[str, Scored]:
        index = own.parts.index(part)  # type: ignore[arg-type]
        assert models["alone"] is values[index]  # trained without this part
        found = {}
        for name in sets:
            key = name if name in losses else name.rpartition(" ")[0]
            numbers = np.array(losses.get(key, losses["others"])[2 * index : 2 * index + 2])
            found[name] = Scored(Scores(float(numbers.mean()), 0.0), numbers, np.ones(2))
        return found

    monkeypatch.setattr(answering, "score_sets", scored)
    kinds = {"alone": trained, "again": trained, "personal": trained}
    return choose_answer(None, own, kinds, np.zeros(3, np.float32), 0.2)  # type: ignore[arg-type]


def test_the_smallest_set_within_what_seeds_differ_by_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses = {"others": (3.0,) * 4, "alone": (3.0,) * 4, "again": (3.2, 2.8, 3.2, 2.8)}
    spread = math.sqrt(4 * 0.2**2 / 2) / 4
    best = {"all three": (2.0,) * 4}
    found = chosen(monkeypatch, losses | best)
    assert found.spread == pytest.approx(spread)
    assert found.weights == {"alone": 0.4, "personal": 0.4, "federated": 0.2}
    for over, kept in ((0.99, {"alone": 0.8, "federated": 0.2}), (1.01, weights_of(MODELS, 0.2))):
        pair = {"alone + federated": (2.0 + over * spread,) * 4}
        assert chosen(monkeypatch, losses | best | pair).weights == kept
    nearly = {"alone + federated": (2.04,) * 4, "personal + federated": (2.03,) * 4}
    found = chosen(monkeypatch, losses | best | nearly)
    assert found.weights == {"personal": 0.8, "federated": 0.2}
    one = {"federated": (2.0 + 0.9 * spread,) * 4}
    assert chosen(monkeypatch, losses | best | nearly | one).weights == {"federated": 1.0}
    assert found.losses["all three"] == 2.0 and len(found.losses) == 7


def test_of_many_units_the_share_is_chosen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"others": (3.0,) * 2, "alone + federated 0.5": (1.0,) * 2}
    assert chosen(monkeypatch, losses, 1).weights == {"alone": 0.5, "federated": 0.5}
    few = {name: values * 2 for name, values in losses.items()}
    assert chosen(monkeypatch, few, 2).weights == {"alone": 1.0}


def test_without_records_that_were_left_out_the_rule_holds() -> None:
    found = choose_answer(None, OwnParts(([],), 0), {}, np.zeros(1), 0.3)  # type: ignore[arg-type]
    assert found == Answer(weights_of(MODELS, 0.3), {}, 0.0)


def test_what_seeds_differ_by_is_the_deviation_of_one_of_two_means() -> None:
    """Of made-up trainings, whose losses differ by independent noise of each record."""
    drawn = np.random.default_rng(0)
    noise = drawn.normal(0, 0.3, size=(2, 4000, 50))  # two trainings, many times, 50 records
    found = [seeds_differ(*pair, 50.0) for pair in zip(*noise, strict=True)]
    of_one = noise[0].mean(1).std()  # its own relative error is 1/√8000, 4 of which are 0.045
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(of_one, rel=0.06)


@pytest.mark.slow
def test_left_out_parts_choose_with_real_models(worker: Worker) -> None:
    """Each set's loss, of models that were trained here without each part."""
    from fedpriv.config.personal import OwnTraining
    from fedpriv.personal.together import score_sets
    from fedpriv.personal.training import train_alone

    own = in_parts((4, 4, 4), 3)
    settings = OwnTraining(rates=(3e-2,), epochs=2, patience=2, batch_size=4)
    alone = train_alone(worker, worker.initial, own, settings)
    again = train_alone(worker, worker.initial, own, settings, seed=1, as_for=alone)
    federated = alone.values * np.float32(0.5)
    personal = train_alone(worker, federated, own, settings)
    kinds = {"alone": alone, "again": again, "personal": personal}
    found = choose_answer(worker, own, kinds, federated, 0.2)  # type: ignore[arg-type]
    expected = 0.0
    for index, part in enumerate(own.parts):
        models = {"a": alone.best.without[index], "b": personal.best.without[index], "c": federated}
        weights = {"a": 0.4, "b": 0.4, "c": 0.2}
        scores = score_sets(worker, part, models, {"": weights})[""].scores
        targets = sum(len(example.input_ids) - 1 for example in part)
        expected += scores.eval_loss * targets
    total = sum(len(example.input_ids) - 1 for part in own.parts for example in part)
    assert found.losses["all three"] == pytest.approx(expected / total, rel=1e-9)
