"""With `privacy.normalise` one unit moves the sum by at most C, and no other unit with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.data.encode import Example
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.private_training.worker import Worker

CLIP, TARGETS = 0.4, ("q_proj", "v_proj")
Unit = tuple[Example, ...]
Sum = Callable[[list[Unit]], torch.Tensor]


def units(sizes: list[int]) -> list[Unit]:
    """Units of so many records, of lengths from 3 to 60."""
    generator = np.random.default_rng(3)
    made = []
    for unit, size in enumerate(sizes):
        lengths = [3 + (17 * unit + 29 * number) % 58 for number in range(size)]
        ids = [generator.integers(3, 250, size=length).tolist() for length in lengths]
        made.append(tuple(Example(one, [-100, *one[1:]]) for one in ids))
    return made


@pytest.fixture(params=["default", "strict"])
def summed(make_worker: Callable[..., Any], request: pytest.FixtureRequest) -> Sum:
    worker, numerics = make_worker("llama", targets=TARGETS, dtype="float32"), request.param
    noise = np.random.default_rng(5).normal(size=worker.vector.size) / 10
    parameters, method = worker.initial + noise.astype(np.float32), DpLora(normalise=True)

    def sum_of(members: list[Unit]) -> torch.Tensor:
        found = method.clipped_sum(worker, members, parameters, CLIP, numerics)
        assert (found.sensitivity, len(found.value)) == (CLIP, worker.vector.size)
        return found.value if found.grid is None else found.value * found.grid.step

    return sum_of


def test_one_unit_moves_the_sum_by_at_most_the_bound_and_nearly_by_all_of_it(summed: Sum) -> None:
    members = units([2, 1, 3, 1])
    whole = summed(members)
    for left_out in range(len(members)):
        rest = members[:left_out] + members[left_out + 1 :]
        assert 0.99 * CLIP < float((whole - summed(rest)).norm()) <= CLIP


def test_a_unit_adds_the_same_whatever_else_is_sampled(
    summed: Sum, request: pytest.FixtureRequest
) -> None:
    """In strict numerics to the last bit, else but for the order in which float64 sums are made."""
    members = units([1, 3, 1, 2, 1])
    alone = torch.stack([summed([unit]) for unit in members])
    off = 0.0 if "strict" in request.node.name else 1e-12
    for chosen in ([0, 1, 2, 3, 4], [4, 2, 0], [3, 1]):
        total = summed([members[place] for place in chosen])
        assert float((total - alone[chosen].sum(0)).abs().max()) <= off


def test_a_unit_that_is_not_finite_adds_nothing(
    summed: Sum, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, plain = units([1, 1, 1]), Worker.record_gradients
    others = summed([members[0], members[2]])
    poison = members[1][0].input_ids[:3]

    def spoilt(worker: Any, batch: Any) -> torch.Tensor:
        rows = plain(worker, batch)
        rows[(batch.input_ids[:, :3] == torch.tensor(poison)).all(1), 5] = torch.inf
        return rows

    monkeypatch.setattr(Worker, "record_gradients", spoilt)
    assert torch.equal(summed(members), others)
