"""What a controller is shown of a round, and what the server makes of a controlled release."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpriv.config.groups import Decision, GroupTerms
from fedpriv.controllers.base import Seen, Setting
from fedpriv.controllers.config import ControllerSection
from fedpriv.controllers.registry import make_controller
from fedpriv.errors import RawValueError
from fedpriv.gradients.groups import Groups, GroupScaling
from fedpriv.privacy.accounting.filter import RdpFilter
from fedpriv.privacy.mechanism.privatised import TrustModel, public, received, restored
from fedpriv.public_update.controller_run import ControllerRun
from fedpriv.public_update.update import Aggregate

NAMES = ["a.lora_A.weight", "a.lora_B.weight", "b.lora_A.weight", "b.lora_B.weight"]
SHAPES = [(2, 3), (4, 2), (2, 5), (6, 2)]
GROUPS = Groups.of(NAMES, SHAPES, "adapters")
SIZE, CLIP, ROUNDS = GROUPS.size, 0.5, 10
DECISION = Decision(clip_norms=(0.1, 3.0), weights=(0.2, 0.8))
BEFORE = public(np.zeros(SIZE, dtype=np.float32))


class Recording:
    """A controller that decides one thing and keeps what it is shown."""

    together, lift = False, 1.0

    def __init__(self, decision: Decision = DECISION, bits: float = 0.0) -> None:
        self.bits, self.decision = bits, decision
        self.seen: list[Seen] = []

    def decide(self, number: int) -> Decision:
        return self.decision

    def see(self, seen: Seen) -> None:
        self.seen.append(seen)

    def state(self) -> Any:
        return public({"rounds": np.array([len(self.seen)])})

    def restore(self, state: Any) -> None:
        self.restored = state


def terms(bits: float = 0.0, adaptive: bool = False) -> GroupTerms:
    return GroupTerms(by="adapters", count=2, bits=bits, adaptive=adaptive)


def control(recording: Recording, judge: Any = None, adaptive: bool = False) -> ControllerRun:
    own = terms(recording.bits, adaptive)
    return ControllerRun(recording, GROUPS, own, clip_norm=CLIP, rounds=ROUNDS, judge=judge)


def scaling(bits: float = 0.0, decision: Decision = DECISION) -> GroupScaling:
    return GroupScaling(GROUPS, terms(bits), decision, CLIP)


def scaled(gradient: np.ndarray, bits: float = 0.0) -> np.ndarray:
    """As a mean over sites is, without noise."""
    made = gradient.astype(np.float64)
    for start, end, group in GROUPS.segments:
        made[start:end] *= scaling(bits).scales[group]
    return made


def mean_of(values: Any, noise: float = 0.0) -> Aggregate:
    return Aggregate(received(np.asarray(values, np.float32)), noise**2, 10.0)


def seen(recording: Recording) -> Seen:
    return recording.seen[-1]


def test_a_gradient_is_scaled_back_group_by_group() -> None:
    gradient = np.random.default_rng(0).standard_normal(SIZE)
    for lift in (1.0, 3.0):
        recording = Recording()
        recording.lift = lift
        made = control(recording).gradient(1, mean_of(scaled(gradient)), BEFORE)
        assert made.gradient.value == pytest.approx(lift * gradient, rel=1e-5)
        assert made.gradient.trust_model == TrustModel.RECEIVED
        assert made.units == 10.0


def test_it_sees_squared_norms_without_bias_and_the_noise_that_there_is() -> None:
    """Over many draws of the noise, whose mean in a square would else be most of it."""
    gradient, noise = np.random.default_rng(1).standard_normal(SIZE) / 50, 0.02
    recording, generator = Recording(), np.random.default_rng(2)
    controlled, found = control(recording), []
    errors = []
    for _ in range(4000):
        released = scaled(gradient) + noise * generator.standard_normal(SIZE)
        made = controlled.gradient(1, mean_of(released, noise), BEFORE)
        controlled.see(BEFORE)
        found.append(seen(recording).squared.value)
        errors.append(made.gradient.value - gradient)
    truth = GROUPS.squared_norms(gradient.astype(np.float32))
    spread = np.std(found, axis=0) / len(found) ** 0.5
    assert (np.abs(np.mean(found, axis=0) - truth) < 4.5 * spread).all()
    deviations = np.array(seen(recording).deviation)
    biased = np.mean(found, axis=0) + np.array(GROUPS.sizes) * deviations**2
    assert (np.abs(biased - truth) > 20 * spread).all()  # what it would be without
    for group, size in enumerate(GROUPS.sizes):
        columns = [range(start, end) for start, end, g in GROUPS.segments if g == group]
        drawn = np.array(errors)[:, np.concatenate(columns)]
        assert drawn.std() == pytest.approx(deviations[group], rel=5 / (4000 * size) ** 0.5)


def test_noise_of_a_group_is_as_the_formula_says() -> None:
    """σC_k / √((1−f)w_k), over what the mean is divided by."""
    bits, noise = 0.2, 0.02  # σC over the units
    recording = Recording(bits=bits)
    controlled = control(recording)
    made = controlled.gradient(1, mean_of(np.zeros(SIZE + 2), noise), BEFORE)
    controlled.see(BEFORE)
    pairs = zip(DECISION.clip_norms, DECISION.weights, strict=True)
    expected = [noise / CLIP * norm / ((1 - bits) * weight) ** 0.5 for norm, weight in pairs]
    assert seen(recording).deviation == pytest.approx(expected)
    assert made.noise_variance == 0.0  # not the same in all coordinates
    even = Recording(Decision(clip_norms=(1.0, 1.0), weights=(0.5, 0.5)))
    made = control(even).gradient(1, mean_of(np.zeros(SIZE), noise), BEFORE)
    assert made.noise_variance == pytest.approx((noise / CLIP / 0.5**0.5) ** 2)


def test_it_sees_which_share_was_within_where_it_asked() -> None:
    recording = Recording(bits=0.2)
    controlled = control(recording)
    assert controlled.extra == 2
    bit = 2 * CLIP * (0.2 / 2) ** 0.5
    released = np.concatenate([scaled(np.ones(SIZE), 0.2), [0.25 * bit, -0.5 * bit]])
    made = controlled.gradient(1, mean_of(released), BEFORE)
    assert made.gradient.value == pytest.approx(np.ones(SIZE), rel=1e-5)
    controlled.see(BEFORE)
    within = seen(recording).within
    assert within is not None
    assert within.value == pytest.approx([0.75, 0.0], abs=1e-6)
    without = Recording()
    controlled = control(without)
    controlled.gradient(1, mean_of(np.zeros(SIZE)), BEFORE)
    controlled.see(BEFORE)
    assert (controlled.extra, seen(without).within) == (0, None)


def test_it_sees_how_far_the_update_moved_and_what_came_of_it() -> None:
    recording = Recording()
    judged: list[Any] = []

    def judge(vector: Any) -> float:
        judged.append(vector)
        return 2.5

    controlled = control(recording, judge)
    moved = np.arange(SIZE, dtype=np.float32)
    before = received(np.ones(SIZE, dtype=np.float32))
    controlled.gradient(3, mean_of(np.zeros(SIZE)), before)
    before.value[:] = 77.0  # as an update in place would
    after = received(moved + 1)
    controlled.see(after)
    assert judged == [after]
    assert seen(recording).moved.value == pytest.approx(np.sqrt(GROUPS.squared_norms(moved)))
    loss = seen(recording).loss
    assert loss is not None and loss.value == 2.5
    assert (seen(recording).number, seen(recording).decision) == (3, DECISION)


def test_how_much_is_spent_counts_shares_where_noise_is_adaptive() -> None:
    fixed, adaptive = Recording(), Recording(DECISION.model_copy(update={"share": 0.3}))
    for recording, expected in ((fixed, [0.1, 0.2, 0.3]), (adaptive, [0.3, 0.6, 0.9])):
        controlled = control(recording, adaptive=recording is adaptive)
        for number in (1, 2, 3):
            for _ in "ab":  # a round that is asked again spends nothing more
                controlled.gradient(number, mean_of(np.zeros(SIZE)), BEFORE)
            controlled.see(BEFORE)
        assert [one.spent for one in recording.seen] == pytest.approx(expected)


def test_it_goes_on_from_its_state() -> None:
    first = Recording(DECISION.model_copy(update={"share": 0.3}))
    controlled = control(first, adaptive=True)
    for number in (1, 2):
        controlled.gradient(number, mean_of(np.zeros(SIZE)), BEFORE)
        controlled.see(BEFORE)
    state = controlled.state()
    second = Recording(first.decision)
    resumed = control(second, adaptive=True)
    resumed.restore(restored({key: value.copy() for key, value in state.value.items()}))
    assert second.restored.value == {"rounds": np.array([2])}
    resumed.gradient(3, mean_of(np.zeros(SIZE)), BEFORE)
    resumed.see(BEFORE)
    assert seen(second).spent == pytest.approx(0.9)


def test_raw_values_are_refused() -> None:
    raw: Any = np.zeros(SIZE, dtype=np.float32)
    controlled = control(Recording())
    with pytest.raises(RawValueError):
        controlled.gradient(1, Aggregate(raw, 0.0, 1.0), BEFORE)
    with pytest.raises(RawValueError):
        controlled.gradient(1, mean_of(raw), raw)
    controlled.gradient(1, mean_of(raw), BEFORE)
    with pytest.raises(RawValueError):
        controlled.see(raw)


@pytest.mark.parametrize("name", ["quantile", "sac"])
def test_what_it_sees_rests_on_the_sites_word_and_so_does_its_state(name: Any) -> None:
    """A state that rests on less would say that no private record had a part in it."""
    adaptive = name == "sac"
    budget = RdpFilter(8, 0.1, 1.0, ROUNDS) if adaptive else None
    setting = Setting(GROUPS.names, GROUPS.sizes, ROUNDS, CLIP, filter=budget)
    known = {"name": name, "adaptive": adaptive}
    if name == "sac":
        known["sac"] = {"encoder": 8, "warm_up": 2, "updates": 1}
    made = make_controller(ControllerSection.model_validate(known), setting)
    own = GroupTerms(by="adapters", count=2, bits=made.bits, adaptive=adaptive)
    controlled = ControllerRun(made, GROUPS, own, clip_norm=CLIP, rounds=ROUNDS)
    assert controlled.state().trust_model == TrustModel.PUBLIC
    generator = np.random.default_rng(3)
    for number in (1, 2, 3):
        decision = controlled.decide(number)
        assert controlled.decide(number) == decision
        released = generator.standard_normal(SIZE + controlled.extra)
        controlled.gradient(number, mean_of(released, 0.1), BEFORE)
        assert controlled.decide(number) == decision  # until it saw what came of it
        controlled.see(BEFORE)
    assert controlled.state().trust_model == TrustModel.RECEIVED
