"""One adapter that answers as several do: against sums by hand, and what it comes to."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.data.encode import NO_LOSS, Example
from fedpriv.models.vector import Vector
from fedpriv.personal import single
from fedpriv.personal.single import distil, follow, gradient, widened, wider, write
from fedpriv.personal.together import score_sets
from fedpriv.plain_training.scores import logits_of, score
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.record_loss import next_tokens
from fedpriv.private_training.worker import Worker
from tests.arithmetic import Rounded

Weighted = list[tuple[Vector, float]]


@pytest.fixture(scope="module")
def records() -> list[Example]:
    drawn = random.Random(0)
    made = [[1, *(drawn.randint(3, 9) for _ in range(drawn.randint(4, 20)))] for _ in range(6)]
    return [Example(ids, [NO_LOSS, NO_LOSS, *ids[2:]]) for ids in made]


@pytest.fixture(scope="module")
def teachers(worker: Worker) -> Weighted:
    drawn = np.random.default_rng(2)
    size, dtype = worker.initial.size, np.float32
    return [(0.5 * drawn.standard_normal(size, dtype=dtype), share) for share in (0.4, 0.4, 0.2)]


@pytest.fixture(scope="module")
def wide(worker: Worker) -> Worker:
    return make_worker(wider(worker.recipe, 3))


def change_of_weights(worker: Worker, values: Vector) -> list[torch.Tensor]:
    worker.vector.write(values)
    layers: list[Any] = [m for m in worker.model.modules() if hasattr(m, "get_delta_weight")]
    return [layer.get_delta_weight("default").detach() for layer in layers]


def widened_each(wide: Worker, worker: Worker, teachers: Weighted) -> Weighted:
    return [(widened(wide, worker, [(values, 1.0)]), share) for values, share in teachers]


def test_a_wider_adapter_has_room_at_the_same_scale(worker: Worker) -> None:
    found = wider(worker.recipe, 3).lora
    assert (found.r, found.alpha / found.r) == (16, 2)
    assert wider(worker.recipe, 9).lora.r == 18


def test_a_widened_adapter_adds_the_weighted_mean(
    worker: Worker, wide: Worker, teachers: Weighted
) -> None:
    changes = [change_of_weights(worker, values) for values, _ in teachers]
    expected = [
        sum(share * part for part, share in zip(parts, (0.4, 0.4, 0.2), strict=True))
        for parts in zip(*changes, strict=True)
    ]
    found = change_of_weights(wide, widened(wide, worker, teachers))
    torch.testing.assert_close(found, expected)


def test_a_widened_adapter_answers_as_before(
    worker: Worker, wide: Worker, teachers: Weighted, records: list[Example]
) -> None:
    values = teachers[0][0]
    expected = Rounded(lambda: score(worker, records, values).eval_loss)
    found = score(wide, records, widened(wide, worker, [(values, 1.0)])).eval_loss
    assert expected.off_by(found) <= 1


def test_the_rows_that_no_adapter_takes_can_learn(
    worker: Worker, wide: Worker, teachers: Weighted
) -> None:
    wide.vector.write(widened(wide, worker, teachers))
    rows = [p[6:] for name, p in wide.model.named_parameters() if ".lora_A." in name]
    assert all(part.abs().sum(1).min() > 0 for part in rows)


def test_more_adapters_than_there_is_room_for_are_refused(
    worker: Worker, teachers: Weighted
) -> None:
    with pytest.raises(ValueError, match="adapters: expected at most 1, got 3"):
        widened(worker, worker, teachers)


def test_the_gradient_is_that_of_the_cross_entropy_by_hand(
    worker: Worker, teachers: Weighted, records: list[Example]
) -> None:
    """Record by record and token by token, with torch's own gradients."""
    values = teachers[0][0] * np.float32(0.5)

    def by_hand() -> Any:
        total = torch.zeros(())
        with worker.gradients.set_aside():
            for record in records:
                batch = worker.batch([record], len(record.input_ids))
                mean = torch.zeros(())
                with torch.no_grad():
                    for other, share in teachers:
                        worker.vector.write(other)
                        mean = mean + share * logits_of(worker, batch)[0].softmax(-1)
                worker.vector.write(values)
                logs = logits_of(worker, batch)[0].log_softmax(-1)
                places = [at for at, label in enumerate(next_tokens(batch.labels)[0]) if label >= 0]
                losses = [-(mean[at] * logs[at]).sum() for at in places]
                loss = torch.stack(losses).mean() / len(records)
                trained = [p for p in worker.model.parameters() if p.requires_grad]
                parts = torch.autograd.grad(loss, trained)
                total = total + torch.cat([part.flatten() for part in parts])
        return total.numpy()

    found = gradient(worker, records, values, teachers)
    assert Rounded(by_hand).off_by(found) <= 1
    assert np.linalg.norm(found) > 0.01


def test_who_answers_as_the_teachers_do_has_nothing_to_learn(
    worker: Worker, teachers: Weighted, records: list[Example]
) -> None:
    (one, _), (other, _), _ = teachers
    nothing = np.abs(gradient(worker, records, one, [(one, 1.0)])).max()
    assert nothing < 1e-4 * np.abs(gradient(worker, records, one, [(other, 1.0)])).max()


@pytest.mark.slow
def test_texts_begin_as_records_do_and_are_learned_from_there(
    worker: Worker, teachers: Weighted, records: list[Example]
) -> None:
    made = write(worker, teachers, records, 24, seed=1)
    assert len(made) == 24
    beginnings = {tuple(record.input_ids[:2]) for record in records}
    for text in made:
        assert tuple(text.input_ids[:2]) in beginnings
        assert text.labels == [NO_LOSS, NO_LOSS, *text.input_ids[2:]]
        assert 2 < len(text.input_ids) <= 32
        assert 2 not in text.input_ids[:-1] or text.input_ids.index(2) < 2
    again, other = (write(worker, teachers, records, 24, seed=seed) for seed in (1, 2))
    assert again == made and other != made


def test_each_text_is_of_one_teacher_drawn_by_its_weight(
    worker: Worker,
    teachers: Weighted,
    records: list[Example],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[float, int] = {}

    def sample(model: Any, tokenizer: Any, starts: list[list[int]], **_: Any) -> list[list[int]]:
        asked[float(worker.vector.read()[0])] = len(starts)
        return [[5] for _ in starts]

    monkeypatch.setattr(single, "sample", sample)
    write(worker, teachers, records, 1000)
    counts = [asked[float(values[0])] for values, _ in teachers]
    assert counts == pytest.approx([400, 400, 200], abs=60)  # four deviations


@pytest.mark.slow
def test_a_wider_adapter_learns_to_answer_as_the_three_do(
    worker: Worker, wide: Worker, teachers: Weighted, records: list[Example]
) -> None:
    """Closer to them than the mean of their weights is, on texts that it did not learn."""
    others = write(worker, teachers, records, 32, seed=9)
    each = widened_each(wide, worker, teachers)
    begun = widened(wide, worker, teachers)
    made = distil(wide, worker, teachers, records)
    before, after = (_apart(wide, values, each, others) for values in (begun, made))
    assert after < 0.8 * before
    assert made.dtype == np.float32


def _apart(worker: Worker, values: Vector, teachers: Weighted, records: list[Example]) -> float:
    """KL divergence: the loss of the model on texts of the teachers, less the teachers' own."""
    models = {str(index): one for index, (one, _) in enumerate(teachers)}
    weights = {str(index): weight for index, (_, weight) in enumerate(teachers)}
    found = score_sets(worker, records, models, {"": weights})[""].scores
    return score(worker, records, values).eval_loss - found.eval_loss


def test_the_same_seed_makes_the_same_adapter(
    worker: Worker, teachers: Weighted, records: list[Example]
) -> None:
    def made(seed: int) -> Vector:
        return follow(worker, worker.initial, teachers, records, seed=seed, batch_size=2)

    assert np.array_equal(made(1), made(1))
    assert not np.array_equal(made(1), made(2))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"frozen_a": True}, {"modules_to_save": ("lm_head",)}])
def test_what_is_trained_otherwise_is_widened_too(
    worker: Worker, records: list[Example], settings: dict[str, Any]
) -> None:
    """lora_B alone, beside a lora_A that stays as it was drawn; and a layer as a whole."""
    lora = worker.recipe.lora.model_copy(update=settings)
    narrow = make_worker(replace(worker.recipe, lora=lora))
    wide = make_worker(wider(narrow.recipe, 1))
    drawn = np.random.default_rng(3).standard_normal(narrow.initial.size, dtype=np.float32)
    values = narrow.initial + np.float32(0.1) * drawn
    expected = Rounded(lambda: score(narrow, records, values).eval_loss)
    assert (
        expected.off_by(score(wide, records, widened(wide, narrow, [(values, 1.0)])).eval_loss) <= 1
    )
