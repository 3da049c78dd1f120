"""What holds for every controller, whatever it sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from fedpriv.config.groups import Decision
from fedpriv.controllers.base import Controller, Setting
from fedpriv.errors import RawValueError, RunError
from fedpriv.privacy.mechanism.privatised import TrustModel, public, restored
from tests.controllers.controller_rounds import NAMES, make, setting_of, shares
from tests.example_counts import examples

anything = st.floats(allow_nan=True, allow_infinity=True)
plausible = st.floats(-1.0, 4.0)


def rounds_seen(count: int) -> st.SearchStrategy[list[list[float]]]:
    """Some rounds as they could come, and as they never should."""
    within = st.lists(plausible | anything, min_size=count, max_size=count)
    return st.lists(within, min_size=1, max_size=5)


def same(first: Controller, second: Controller) -> bool:
    """Whether both would decide the same, and are in the same state."""
    one, other = first.state().value, second.state().value
    return (
        first.decide() == second.decide()
        and one.keys() == other.keys()
        and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), sizes=st.lists(st.integers(1, 10**8), min_size=1, max_size=4))
def test_whatever_it_sees_its_decisions_are_valid_the_same_and_go_on_from_a_state(
    name: str, sizes: list[int], data: st.DataObject
) -> None:
    clip_norm = data.draw(st.sampled_from([1e-6, 0.1, 1.0, 1e6]))
    setting = setting_of(tuple(sizes), clip_norm)
    first, second = make(name, setting), make(name, setting)
    for within in data.draw(rounds_seen(setting.count)):
        first.see(shares(within))
        second.see(shares(within))
        decision = first.decide()
        assert Decision.model_validate(decision.model_dump()) == decision
        assert len(decision.weights) == setting.count
        assert first.decide() == decision
        third = make(name, setting)
        third.restore(restored(first.state().value))
        assert same(first, second) and same(first, third)
        second = third  # which goes on as if it had never been away


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rounds", [0, 4])
def test_a_state_goes_through_a_file(name: str, rounds: int) -> None:
    first, second = make(name), make(name)
    for _ in range(rounds):
        first.see(shares([0.1] * 3))
    tensors = {key: torch.from_numpy(value) for key, value in first.state().value.items()}
    read = {key: value.numpy() for key, value in load(save(tensors)).items()}
    second.restore(restored(read))
    assert same(first, second)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_is_a_copy(name: str) -> None:
    controller = make(name)
    before = controller.state().value
    kept = {key: value.copy() for key, value in before.items()}
    for _ in range(4):
        controller.see(shares([0.1] * 3))
    assert all(np.array_equal(before[key], kept[key], equal_nan=True) for key in kept)
    if name == "quantile":
        after = controller.state().value
        assert any(not np.array_equal(after[key], kept[key], equal_nan=True) for key in kept)


@pytest.mark.parametrize("name", NAMES)
def test_a_raw_value_is_refused_and_nothing_is_learned_from_it(name: str) -> None:
    setting = setting_of((1, 2))
    controller, untouched = make(name, setting), make(name, setting)
    raw: Any = shares([0.1, 0.2]).value
    with pytest.raises(RawValueError):
        controller.see(raw)
    assert same(controller, untouched)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3,), (1,), (2, 1), ()])
def test_values_of_other_groups_are_refused(name: str, shape: tuple[int, ...]) -> None:
    setting = setting_of((1, 2))
    controller, untouched = make(name, setting), make(name, setting)
    with pytest.raises(ValueError, match="within: expected 2 values"):
        controller.see(shares(np.ones(shape)))
    assert same(controller, untouched)
    assert controller.state().trust_model == TrustModel.PUBLIC


@pytest.mark.parametrize("name", NAMES)
def test_a_raw_state_and_that_of_another_job_are_refused(name: str) -> None:
    controller, untouched = make(name), make(name)
    raw: Any = controller.state().value
    with pytest.raises(RawValueError):
        controller.restore(raw)
    wrong: list[dict[str, Any]] = [{**raw, "other": np.zeros(3)}]
    if raw:
        first = next(iter(raw))
        wrong += [
            {},
            {key: value for key, value in raw.items() if key != first},
            {**raw, first: np.full(3, np.nan)},
            make(name, setting_of((1, 2))).state().value,
        ]
    for state in wrong:
        with pytest.raises(RunError):
            controller.restore(restored(state))
    assert same(controller, untouched)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_rests_on_whatever_was_seen(name: str) -> None:
    controller = make(name)
    assert controller.state().trust_model == TrustModel.PUBLIC
    controller.see(shares([0.1] * 3))
    controller.see(public(np.ones(3)))
    assert controller.state().trust_model == TrustModel.RECEIVED
    again = make(name)
    again.restore(restored(controller.state().value))
    assert again.state().trust_model == TrustModel.RESTORED


@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_groups_are_decided_about(name: str) -> None:
    sizes = tuple(1 + index % 5000 for index in range(10_000))
    controller = make(name, setting_of(sizes))
    controller.see(shares(np.ones(len(sizes))))
    assert len(controller.decide().weights) == len(sizes)


@pytest.mark.parametrize(
    "wrong", [{"sizes": (1, 2, 0)}, {"groups": ("a",)}, {"groups": (), "sizes": ()}]
)
def test_groups_without_sizes_are_refused(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"groups": ("a", "b", "c"), "sizes": (1, 2, 3)}
    with pytest.raises(ValueError, match="size for each group"):
        Setting(**{**good, **wrong}, clip_norm=1.0)
