"""What a look adds up: the mean that it estimates, how sure that is, and what one unit can do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.config.looks import LooksSection
from fedpriv.data.encode import Example
from fedpriv.data.population import Population, Tally
from fedpriv.privacy.ledger.ledger import Plan, Reservation
from fedpriv.privacy.mechanism.csprng import InsecureRandomness
from fedpriv.privacy.mechanism.execution import PlanExecution
from fedpriv.private_training.held_out_sum import SIZE, Distances, look
from fedpriv.protocol import Centres
from fedpriv_strategies.looks import Estimate, estimates

Make = Callable[..., Any]
CLIP = 0.3
CENTRES = Centres(loss=5.0, accuracy=0.1)
WIDE = LooksSection(looks=1, slots=2, loss_range=4.0, accuracy_range=1.0)
UNITS = [
    tuple(Example(ids, list(ids)) for ids in records)
    for records in (
        [[9, 40, 40, 40, 40, 17]],
        [[70, 71, 72, 73, 74, 75, 76, 77, 78, 79], [80, 81]],
        [[100, 5, 100, 5, 100, 5]],
        [[33, 34, 35], [201, 9, 12, 50], [60, 60]],
    )
]


def plan(rate: float = 1.0, noise: float = 0.05, numerics: Any = "default") -> Plan:
    return Plan("job", "dp-lora", rate, noise, CLIP, 3, "sha256:" + "c" * 64, numerics)


def truth(worker: Any) -> tuple[list[float], list[float]]:
    """Loss and accuracy of each unit, record by record, as transformers and a loop have them."""
    losses, accuracies = [], []
    worker.vector.write(worker.initial)
    for unit in UNITS:
        found, right = [], []
        for example in unit:
            ids = torch.tensor([example.input_ids])
            with torch.no_grad():
                output = worker.model(input_ids=ids, labels=ids)
            found.append(output.loss.item())
            pairs = zip(output.logits[0].argmax(-1).tolist(), example.input_ids[1:], strict=False)
            hits = [guess == token for guess, token in pairs]
            right.append(sum(hits) / len(hits))
        losses.append(sum(found) / len(found))
        accuracies.append(sum(right) / len(right))
    return losses, accuracies


def looked(
    worker: Any, paid: Reservation, seed: int, *, slots: int, units: Sequence[Any] = UNITS
) -> np.ndarray:
    """What a look of so many steps releases."""
    paid_for = [Reservation._of(terms(paid), paid.plan, n, "") for n in range(slots)]
    found = look(
        PlanExecution(paid.plan, SIZE),
        Distances(WIDE, CENTRES),
        worker,
        Population(list(units), Tally()),  # type: ignore[arg-type]
        worker.initial,
        paid_for,
        lambda slot: InsecureRandomness(seed, slot),
    )
    return found.value.values


def terms(paid: Reservation) -> Any:
    """Of a ledger that sells repeatable noise, for the reservations of further slots."""

    class Terms:
        dataset_id, private = paid.ledger, False

    return Terms


def estimated(total: np.ndarray, noise: float, slots: int, rate: float) -> tuple[Estimate, ...]:
    ranges = WIDE.model_copy(update={"slots": slots})
    units = rate * len(UNITS)
    return estimates([total], [noise], [units], ranges=ranges, centres=CENTRES, clip_norm=CLIP)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_a_look_estimates_the_mean_with_the_deviation_that_it_states(
    make_worker: Make, pay: Make, numerics: str
) -> None:
    worker = make_worker()
    expected = [sum(part) / len(UNITS) for part in truth(worker)]
    paid = pay(plan(numerics=numerics))
    tries = 60
    scores = np.array(
        [
            [
                (one.mean - mean) / one.deviation
                for one, mean in zip(
                    estimated(looked(worker, paid, seed, slots=2), 0.05, 2, 1.0),
                    expected,
                    strict=True,
                )
            ]
            for seed in range(tries)
        ]
    )
    assert np.abs(scores.mean(0)).max() < 4 / math.sqrt(tries)
    assert 0.75 < scores.std() < 1.25


def test_many_small_samples_estimate_the_mean(make_worker: Make, pay: Make) -> None:
    worker = make_worker()
    rate, slots = 0.4, 150
    total = looked(worker, pay(plan(rate, noise=0.01)), 1, slots=slots)
    found = estimated(total, 0.01, slots, rate)
    for one, values, centre in zip(
        found, truth(worker), (CENTRES.loss, CENTRES.accuracy), strict=True
    ):
        squares = sum((value - centre) ** 2 for value in values)
        drawn = math.sqrt(rate * (1 - rate) * squares / slots) / (rate * len(UNITS))
        mean = sum(values) / len(values)
        assert abs(one.mean - mean) < 4 * math.hypot(drawn, one.deviation)
        if centre == CENTRES.loss:  # which is far enough from the truth to be told from it
            assert abs(one.mean - centre) > 6 * math.hypot(drawn, one.deviation)


def test_a_look_adds_up_steps_with_a_sample_and_noise_of_their_own(
    make_worker: Make, pay: Make
) -> None:
    worker = make_worker()
    paid = pay(plan(noise=100.0))
    one, two = (looked(worker, paid, 3, slots=slots, units=[]) for slots in (1, 2))
    assert not np.array_equal(two, one) and not np.array_equal(two, 2 * one)
    spread = np.array([looked(worker, paid, s, slots=4, units=[]) for s in range(200)]).std()
    assert 0.85 < spread / (100.0 * CLIP * 2) < 1.15


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("centre", [0.0, 5.0, 1e6])
def test_one_unit_moves_a_look_by_at_most_the_bound(
    make_worker: Make, numerics: Any, centre: float
) -> None:
    worker = make_worker()
    narrow = LooksSection(looks=1, loss_range=1e-6, accuracy_range=1e-6)
    method = Distances(narrow, Centres(loss=centre, accuracy=0.5))
    for unit in UNITS:
        found = method.clipped_sum(worker, [unit], worker.initial, CLIP, numerics)
        value = found.value.double() * (found.grid.step if found.grid else 1.0)
        assert 0.99 * CLIP < float(value.norm()) <= CLIP


def test_a_unit_in_range_counts_in_full_and_a_record_once(make_worker: Make) -> None:
    worker = make_worker(microbatch=4)
    losses, accuracies = truth(worker)
    for unit, loss, accuracy in zip(UNITS, losses, accuracies, strict=True):
        found = Distances(WIDE, CENTRES).clipped_sum(
            worker, [unit], worker.initial, CLIP, "default"
        )
        expected = [CLIP * (loss - 5.0) / 4.0, CLIP * (accuracy - 0.1)]
        assert found.value.tolist() == pytest.approx(expected, rel=1e-6)


def test_every_record_is_computed_alone(make_worker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bits are then its own, also where a range is so small that the last one decides."""
    worker = make_worker(microbatch=4)
    seen: list[int] = []
    batch = type(worker).batch

    def noted(self: Any, examples: Any, length: int) -> Any:
        seen.append(len(examples))
        return batch(self, examples, length)

    monkeypatch.setattr(type(worker), "batch", noted)
    Distances(WIDE, CENTRES).clipped_sum(worker, UNITS, worker.initial, CLIP, "default")
    assert seen == [1] * sum(map(len, UNITS))


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_what_can_not_be_scored_adds_nothing(make_worker: Make, numerics: Any) -> None:
    worker = make_worker(dtype="float32")
    method = Distances(WIDE, CENTRES)
    silent = Example([7, 8, 9], [-100, -100, -100])

    def total(units: Any, values: Any) -> list[float]:
        return method.clipped_sum(worker, units, values, CLIP, numerics).value.tolist()

    alone = total(UNITS[:1], worker.initial)
    assert total([(silent,)], worker.initial) == [0, 0]
    assert total([*UNITS[:1], (silent,), ()], worker.initial) == alone
    half = total([(*UNITS[0], silent)], worker.initial)
    of_a_step = 1 if numerics == "strict" else 0  # integers
    assert half == pytest.approx([value / 2 for value in alone], rel=1e-6, abs=of_a_step)
    assert total(UNITS, np.full_like(worker.initial, 1e30)) == [0, 0]  # no loss is finite


def test_a_classifier_is_right_or_wrong(make_worker: Make) -> None:
    worker = make_worker("bert", task="classification")
    worker.vector.write(worker.initial)
    ids = [5, 6, 7, 8]
    with torch.no_grad():
        logits = worker.model(input_ids=torch.tensor([ids])).logits[0]
    best = int(logits.argmax())
    for label in range(3):
        [loss, accuracy] = (
            Distances(WIDE, Centres(loss=0.0, accuracy=0.5))
            .clipped_sum(worker, [(Example(ids, label),)], worker.initial, 100.0, "default")
            .value.tolist()
        )
        assert accuracy == pytest.approx(50.0 if label == best else -50.0)
        assert loss == pytest.approx(-25.0 * float(torch.log_softmax(logits, 0)[label]))


def test_sites_are_one_population_whatever_their_noise() -> None:
    """Means of two sites by hand: every unit counts the same, and the noises add up."""
    ranges = LooksSection(looks=1, slots=4, loss_range=2.0, accuracy_range=0.5)
    totals = [np.array([6.0, -3.0], np.float32), np.array([-2.0, 1.0], np.float32)]
    loss, accuracy = estimates(
        totals, [1.0, 3.0], [5.0, 15.0], ranges=ranges, centres=CENTRES, clip_norm=0.5
    )
    assert loss.mean == pytest.approx(5.0 + 2.0 * 4.0 / (0.5 * 4 * 20))
    assert accuracy.mean == pytest.approx(0.1 + 0.5 * -2.0 / (0.5 * 4 * 20))
    assert loss.deviation == pytest.approx(2.0 * math.sqrt(10) * 0.5 * 2 / (0.5 * 4 * 20))
    assert accuracy.deviation == pytest.approx(loss.deviation / 4)
