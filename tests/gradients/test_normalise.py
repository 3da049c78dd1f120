"""Each adapter's part has its length, and no unit is longer than the clip norm."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.gradients.normalise import MOST, Normalise, adapters_of
from fedpriv.privacy.mechanism.clip import clip_and_sum, clip_to_grid
from fedpriv.privacy.mechanism.grid import Grid

NAMES = [
    "model.layers.0.q_proj.lora_A.default.weight",
    "model.layers.0.v_proj.lora_A.default.weight",
    "model.layers.0.q_proj.lora_B.default.weight",
    "model.layers.0.v_proj.lora_B.default.weight",
    "model.layers.1.q_proj.lora_A.default.weight",
    "model.layers.1.q_proj.lora_B.default.weight",
    "score.modules_to_save.default.weight",
]
SHAPES = [(2, 3), (2, 3), (5, 2), (4, 2), (2, 3), (5, 2), (2, 5)]
SIZE = sum(math.prod(shape) for shape in SHAPES)
C = 2.0
normalise = Normalise(NAMES, SHAPES, C)
rows = st.lists(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=SIZE, max_size=SIZE),
    min_size=1,
    max_size=3,
).map(lambda found: torch.tensor(found, dtype=torch.float32))


def test_a_and_b_of_a_layer_are_one_adapter_and_a_head_is_one() -> None:
    assert adapters_of(NAMES, SHAPES) == {
        "model.layers.0.q_proj": [(0, 6), (12, 22)],
        "model.layers.0.v_proj": [(6, 12), (22, 30)],
        "model.layers.1.q_proj": [(30, 36), (36, 46)],
        "score": [(46, 56)],
    }


@given(means=rows)
def test_no_unit_is_longer_than_the_clip_norm(means: torch.Tensor) -> None:
    """Float32 rounds each of the coordinates by 2⁻²⁴ at most, and a factor by as much."""
    made = normalise(means)
    assert made.shape == means.shape
    assert bool((torch.linalg.vector_norm(made.double(), dim=1) <= C * (1 + 2**-22)).all())
    for one in made:
        assert float(torch.linalg.vector_norm(clip_and_sum(one.clone().unsqueeze(0), C))) <= C
        grid = Grid(C, made.shape[1])
        whole = clip_to_grid(one.clone().unsqueeze(0), grid)
        assert int(whole.square().sum()) <= grid.limit


def test_each_part_has_its_length_and_keeps_its_direction() -> None:
    """Against the formula, adapter by adapter. The third part is too short to have it."""
    row = np.random.default_rng(1).standard_normal(SIZE)
    row[30:46] *= 1e-6
    made = normalise(torch.tensor(row).unsqueeze(0))[0].numpy()
    for name, columns in adapters_of(NAMES, SHAPES).items():
        part, found = (np.concatenate([of[a:b] for a, b in columns]) for of in (row, made))
        length = C * math.sqrt(len(part) / SIZE)
        factor = MOST if name == "model.layers.1.q_proj" else length / np.linalg.norm(part)
        assert found == pytest.approx(factor * part, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_adds_nothing(bad: float) -> None:
    row = torch.ones(1, SIZE)
    row[0, 17] = bad
    assert not clip_and_sum(normalise(row), C).any()


def test_nothing_stays_nothing() -> None:
    assert not normalise(torch.zeros(2, SIZE)).any()
