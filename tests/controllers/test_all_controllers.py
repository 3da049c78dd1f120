"""What holds for every controller, whatever it sees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from fedpriv.config.groups import MIN_SHARE, Decision
from fedpriv.controllers.base import Controller, Seen, Setting
from fedpriv.controllers.config import ControllerSection
from fedpriv.controllers.registry import make_controller
from fedpriv.errors import ConfigError, RawValueError, RunError
from fedpriv.privacy.mechanism.privatised import TrustModel, public, received, restored
from tests.controllers.controller_rounds import NAMES, ROUNDS, make, seen_of, setting_of
from tests.example_counts import examples

anything = st.floats(allow_nan=True, allow_infinity=True)
plausible = st.floats(-1.0, 4.0)
KINDS = [*((name, False) for name in NAMES), ("sac", True)]


def values(count: int) -> st.SearchStrategy[list[float]]:
    return st.lists(plausible | anything, min_size=count, max_size=count)


@st.composite
def rounds_seen(draw: st.DrawFn, controller: Controller, count: int) -> list[Seen]:
    """Some rounds as they could come, and as they never should."""
    decision = controller.decide(1)
    found = []
    for number in range(1, draw(st.integers(1, 5)) + 1):
        within = draw(st.none() | values(count))
        found.append(
            seen_of(
                draw(st.sampled_from([number, number, -1, 10**9])),
                decision,
                draw(values(count)),
                deviation=draw(values(count)),
                within=within,
                moved=draw(values(count)),
                spent=draw(st.floats(0, 1) | anything),
                loss=draw(st.none() | plausible | anything),
            )
        )
    return found


def same(first: Controller, second: Controller) -> bool:
    """Whether both would decide the same in any round, and are in the same state."""
    one, other = first.state().value, second.state().value
    return (
        [first.decide(number) for number in range(1, ROUNDS + 1)]
        == [second.decide(number) for number in range(1, ROUNDS + 1)]
        and one.keys() == other.keys()
        and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
    )


@pytest.mark.parametrize(("name", "adaptive"), KINDS)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), sizes=st.lists(st.integers(1, 10**8), min_size=1, max_size=4))
def test_whatever_it_sees_its_decisions_are_valid_the_same_and_go_on_from_a_state(
    name: str, adaptive: bool, sizes: list[int], data: st.DataObject
) -> None:
    clip_norm = data.draw(st.sampled_from([1e-6, 0.1, 1.0, 1e6]))
    setting = setting_of(tuple(sizes), adaptive=adaptive, clip_norm=clip_norm, seed=7)
    first, second = make(name, setting), make(name, setting)
    for seen in data.draw(rounds_seen(first, setting.count)):
        first.see(seen)
        second.see(seen)
        for number in (-1, 0, 1, seen.number + 1, ROUNDS, ROUNDS + 1):
            decision = first.decide(number)
            assert Decision.model_validate(decision.model_dump()) == decision
            assert len(decision.weights) == setting.count
            assert (decision.share is not None) == adaptive
            assert adaptive or decision.rate == 1.0
            assert first.decide(number) == decision
        third = make(name, setting)
        third.restore(restored(first.state().value))
        assert same(first, second) and same(first, third)
        second = third  # which goes on as if it had never been away


@pytest.mark.parametrize(("name", "adaptive"), KINDS)
@pytest.mark.parametrize("rounds", [0, 4])
def test_a_state_goes_through_a_file(name: str, adaptive: bool, rounds: int) -> None:
    setting = setting_of(adaptive=adaptive)
    first, second = make(name, setting), make(name, setting)
    for number in range(1, rounds + 1):
        decision = first.decide(number)
        first.see(seen_of(number, decision, [1.0, 2.0, 3.0], within=[0.1] * 3, loss=1 / number))
    tensors = {key: torch.from_numpy(value) for key, value in first.state().value.items()}
    read = {key: value.numpy() for key, value in load(save(tensors)).items()}
    second.restore(restored(read))
    assert same(first, second)


@pytest.mark.parametrize(("name", "adaptive"), KINDS)
def test_a_state_is_a_copy(name: str, adaptive: bool) -> None:
    controller = make(name, setting_of(adaptive=adaptive))
    before = controller.state().value
    kept = {key: value.copy() for key, value in before.items()}
    for number in range(1, 5):
        controller.see(
            seen_of(number, controller.decide(number), [1.0, 2.0, 3.0], within=[0.1] * 3)
        )
    assert all(np.array_equal(before[key], kept[key], equal_nan=True) for key in kept)
    if name in ("quantile", "sac"):
        after = controller.state().value
        assert any(not np.array_equal(after[key], kept[key], equal_nan=True) for key in kept)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["squared", "moved", "within", "loss"])
def test_a_raw_value_is_refused_and_nothing_is_learned_from_it(name: str, key: str) -> None:
    setting = setting_of((1, 2))
    controller, untouched = make(name, setting), make(name, setting)
    good = seen_of(1, controller.decide(1), [1.0, 2.0], within=[0.1, 0.2], loss=1.0)
    raw: Any = getattr(good, key).value
    with pytest.raises(RawValueError):
        controller.see(Seen(**{**vars(good), key: raw}))
    assert same(controller, untouched)


@pytest.mark.parametrize("name", NAMES)
def test_values_of_other_groups_are_refused(name: str) -> None:
    setting = setting_of((1, 2))
    controller, untouched = make(name, setting), make(name, setting)
    good = seen_of(1, controller.decide(1), [1.0, 2.0], within=[0.1, 0.2])
    wrong: dict[str, Any] = {
        "squared": received(np.ones(3)),
        "moved": received(np.ones(1)),
        "within": received(np.ones((2, 1))),
        "deviation": (1.0,),
    }
    for key, value in wrong.items():
        with pytest.raises(ValueError, match=key):
            controller.see(Seen(**{**vars(good), key: value}))
    assert same(controller, untouched)


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
    seen = seen_of(1, controller.decide(1), [1.0, 2.0, 3.0])
    controller.see(Seen(**{**vars(seen), "moved": public(np.ones(3))}))
    assert controller.state().trust_model == TrustModel.RECEIVED
    again = make(name)
    again.restore(restored(controller.state().value))
    assert again.state().trust_model == TrustModel.RESTORED


@pytest.mark.parametrize(("name", "adaptive"), KINDS)
def test_equal_seeds_make_equal_runs(name: str, adaptive: bool) -> None:
    """A whole job, with noise that answers to the decisions."""

    def run(setting: Setting) -> list[Decision]:
        controller, noise = make(name, setting), np.random.default_rng(0)
        found = []
        for number in range(1, ROUNDS + 1):
            decision = controller.decide(number)
            squared = noise.normal(1, 0.5, 3) * np.asarray(decision.clip_norms) ** 2
            within = noise.normal(0.4, 0.1, 3)
            loss = 5 - 0.1 * number + 0.01 * noise.normal()
            controller.see(seen_of(number, decision, squared, within=within, loss=loss))
            found.append(decision)
        return found

    one = run(setting_of(adaptive=adaptive, seed=3))
    assert one == run(setting_of(adaptive=adaptive, seed=3))
    assert (one != run(setting_of(adaptive=adaptive, seed=4))) == (name == "sac")


@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_groups_are_decided_about(name: str) -> None:
    sizes = tuple(1 + index % 5000 for index in range(10_000 if name != "sac" else 1_000))
    controller = make(name, setting_of(sizes))
    ones = np.ones(len(sizes))
    controller.see(seen_of(1, controller.decide(1), ones, within=ones))
    assert len(controller.decide(2).weights) == len(sizes)


def test_a_learning_controller_has_its_limit() -> None:
    with pytest.raises(ConfigError, match="at most 1000 groups"):
        make("sac", setting_of((1,) * 1001))


@pytest.mark.parametrize("adaptive", [False, True])
def test_only_an_adaptive_job_has_a_filter(adaptive: bool) -> None:
    section = ControllerSection(name="sac", adaptive=adaptive)
    with pytest.raises(ConfigError, match=r"controller\.adaptive"):
        make_controller(section, setting_of(adaptive=not adaptive))


@pytest.mark.parametrize(
    "wrong", [{"sizes": (1, 2, 0)}, {"groups": ("a",)}, {"groups": (), "sizes": ()}]
)
def test_groups_without_sizes_are_refused(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"groups": ("a", "b", "c"), "sizes": (1, 2, 3)}
    with pytest.raises(ValueError, match="size for each group"):
        Setting(**{**good, **wrong}, rounds=1, clip_norm=1.0)


@pytest.mark.parametrize("spent", [1.0, math.inf])
def test_a_learning_controller_asks_for_no_more_once_all_is_spent(spent: float) -> None:
    controller = make("sac", setting_of(adaptive=True))
    controller.see(seen_of(1, controller.decide(1), [1.0] * 3, spent=spent))
    assert controller.decide(2).share == MIN_SHARE
