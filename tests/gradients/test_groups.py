"""Whatever a decision says, a unit's vector stays within the clip norm; and what is scaled back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.config.groups import Decision, Grouping, GroupTerms
from fedpriv.errors import ProtocolError
from fedpriv.gradients.groups import Groups, GroupScaling
from fedpriv.privacy.mechanism.clip import clip_and_sum, clip_to_grid
from fedpriv.privacy.mechanism.grid import Grid

NAMES = [
    "model.layers.0.q_proj.lora_A.default.weight",
    "model.layers.0.q_proj.lora_B.default.weight",
    "model.layers.0.v_proj.lora_A.default.weight",
    "model.layers.0.v_proj.lora_B.default.weight",
    "model.layers.1.q_proj.lora_A.default.weight",
    "model.layers.1.q_proj.lora_B.default.weight",
    "score.modules_to_save.default.weight",
]
SHAPES = [(2, 3), (5, 2), (2, 3), (4, 2), (2, 3), (5, 2), (2, 5)]
SIZE = sum(math.prod(shape) for shape in SHAPES)
COUNTS: dict[Grouping, int] = {"model": 1, "layers": 3, "adapters": 4, "matrices": 7}
C = 2.0


def decision(weights: list[float], norms: list[float]) -> Decision:
    total = math.fsum(weights)
    return Decision(clip_norms=tuple(norms), weights=tuple(w / total for w in weights))


@st.composite
def scalings(draw: st.DrawFn) -> GroupScaling:
    by = draw(st.sampled_from(sorted(COUNTS)))
    groups = Groups.of(NAMES, SHAPES, by)
    count = len(groups)
    weights = draw(st.lists(st.floats(1e-4, 1), min_size=count, max_size=count))
    norms = draw(st.lists(st.floats(1e-6, 1e6), min_size=count, max_size=count))
    terms = GroupTerms(
        by=by,
        count=count,
        bits=draw(st.sampled_from([0.0, 0.05, 0.5])),
    )
    return GroupScaling(groups, terms, decision(weights, norms), C)


rows = st.lists(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=SIZE, max_size=SIZE),
    min_size=1,
    max_size=3,
).map(lambda found: torch.tensor(found, dtype=torch.float32))


@pytest.mark.parametrize("by", sorted(COUNTS))
def test_groups_are_all_of_the_vector_and_nothing_twice(by: Grouping) -> None:
    groups = Groups.of(NAMES, SHAPES, by)
    assert len(groups) == COUNTS[by] == len(set(groups.names))
    assert groups.size == sum(groups.sizes) == SIZE
    ends = [0, *(end for _, end, _ in groups.segments)]
    assert [start for start, _, _ in groups.segments] == ends[:-1]


def test_a_and_b_of_a_layer_are_one_adapter_and_a_head_is_one() -> None:
    groups = Groups.of(NAMES, SHAPES, "adapters")
    assert groups.names[0] == "model.layers.0.q_proj"
    assert groups.sizes == (16, 14, 16, 10)
    assert Groups.of(NAMES, SHAPES, "layers").sizes == (30, 16, 10)


@given(scaling=scalings(), means=rows)
def test_no_decision_makes_a_unit_longer_than_the_clip_norm(
    scaling: GroupScaling, means: torch.Tensor
) -> None:
    made = scaling.vectors(means)
    assert made.shape == (len(means), SIZE + scaling.extra)
    assert bool((torch.linalg.vector_norm(made.double(), dim=1) <= C * (1 + 1e-5)).all())
    for one in made:
        assert float(torch.linalg.vector_norm(clip_and_sum(one.clone().unsqueeze(0), C))) <= C
        grid = Grid(C, made.shape[1])
        whole = clip_to_grid(one.clone().unsqueeze(0), grid)
        assert int(whole.square().sum()) <= grid.limit


@given(scaling=scalings(), means=rows)
def test_what_was_within_comes_back_as_it_was(scaling: GroupScaling, means: torch.Tensor) -> None:
    """Small enough that nothing is clipped."""
    small = means / (1 + torch.linalg.vector_norm(means.double(), dim=1, keepdim=True)).float()
    small *= 1e-3 * float((C / torch.from_numpy(scaling.scales)).min()) / C
    back = scaling.gradient(scaling.vectors(small)[0].numpy())
    assert np.allclose(back, small[0].numpy(), rtol=1e-5, atol=1e-35)


def test_each_group_is_clipped_to_its_own_norm() -> None:
    """Against the formulas, group by group."""
    groups = Groups.of(NAMES, SHAPES, "adapters")
    chosen = decision([1, 2, 3, 4], [0.5, 1.0, 2.0, 4.0])
    terms = GroupTerms(by="adapters", count=4, bits=0.2)
    generator = np.random.default_rng(1)
    row = generator.standard_normal(SIZE) * np.repeat([5, 0.01, 1, 3], groups.sizes)
    made = GroupScaling(groups, terms, chosen, C).vectors(torch.tensor(row).unsqueeze(0))[0]
    expected, within, start = [], [], 0
    for size, norm, weight in zip(groups.sizes, chosen.clip_norms, chosen.weights, strict=True):
        part = row[start : start + size]
        start += size
        scale = C * math.sqrt(0.8 * weight) / norm
        length = float(np.linalg.norm(part))
        expected.append(scale * part * min(1, norm / length))
        within.append(length <= norm)
    bit = 2 * C * math.sqrt(0.2 / 4)
    bits = [(0.5 if one else -0.5) * bit for one in within]
    assert made.numpy() == pytest.approx(np.concatenate([*expected, bits]), rel=1e-12)


def test_shares_of_units_within_are_read_back() -> None:
    groups = Groups.of(NAMES, SHAPES, "adapters")
    terms = GroupTerms(by="adapters", count=4, bits=0.1)
    scaling = GroupScaling(groups, terms, decision([1] * 4, [1.0, 2.0, 3.0, 4.0]), C)
    generator = torch.Generator().manual_seed(0)
    units = torch.randn(50, SIZE, generator=generator)
    released = scaling.vectors(units).mean(0).numpy()
    start, shares = 0, []
    for size, norm in zip(groups.sizes, [1.0, 2.0, 3.0, 4.0], strict=True):
        norms = torch.linalg.vector_norm(units[:, start : start + size], dim=1)
        shares.append(float((norms <= norm).double().mean()))
        start += size
    assert scaling.within(released) == pytest.approx(shares, abs=1e-6)


def test_one_group_at_the_plans_own_clip_norm_changes_nothing() -> None:
    groups = Groups.of(NAMES, SHAPES, "model")
    scaling = GroupScaling(groups, GroupTerms(by="model", count=1), decision([1], [C]), C)
    row = torch.randn(1, SIZE, generator=torch.Generator().manual_seed(0))
    for size in (0.01, 1e-5):
        assert torch.equal(scaling.vectors(row * size), row * size)
    clipped = clip_and_sum(scaling.vectors(row * 100), C)
    assert clipped.numpy() == pytest.approx(clip_and_sum(row * 100, C).numpy(), rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_adds_nothing_not_even_its_bits(bad: float) -> None:
    groups = Groups.of(NAMES, SHAPES, "adapters")
    terms = GroupTerms(by="adapters", count=4, bits=0.1)
    scaling = GroupScaling(groups, terms, decision([1] * 4, [1.0] * 4), C)
    row = torch.ones(1, SIZE)
    row[0, 17] = bad
    assert not clip_and_sum(scaling.vectors(row), C).any()


def test_a_decision_about_other_groups_is_refused() -> None:
    groups = Groups.of(NAMES, SHAPES, "layers")
    with pytest.raises(ProtocolError, match="expected 3"):
        GroupScaling(groups, GroupTerms(by="layers", count=4), decision([1] * 3, [1] * 3), C)
    with pytest.raises(ProtocolError, match="expected 3"):
        GroupScaling(groups, GroupTerms(by="layers", count=3), decision([1] * 4, [1] * 4), C)
