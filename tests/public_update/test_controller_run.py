"""What a controller is shown of a round, and what the server makes of a controlled release."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpriv.config.groups import Decision, GroupTerms
from fedpriv.controllers.base import Array, Controller, Setting
from fedpriv.controllers.config import ControllerSection
from fedpriv.controllers.registry import make_controller
from fedpriv.errors import RawValueError
from fedpriv.gradients.groups import Groups, GroupScaling
from fedpriv.privacy.mechanism.privatised import Privatised, TrustModel, received, restored
from fedpriv.public_update.controller_run import ControllerRun
from fedpriv.public_update.update import Aggregate

NAMES = ["a.lora_A.weight", "a.lora_B.weight", "b.lora_A.weight", "b.lora_B.weight"]
SHAPES = [(2, 3), (4, 2), (2, 5), (6, 2)]
GROUPS = Groups.of(NAMES, SHAPES, "adapters")
SIZE, CLIP = GROUPS.size, 0.5
SETTING = Setting(GROUPS.names, GROUPS.sizes, CLIP)
DECISION = Decision(clip_norms=(0.1, 3.0), weights=(0.2, 0.8))
EVEN = Decision(clip_norms=(1.0, 1.0), weights=(0.5, 0.5))


class Recording(Controller):
    """A controller that decides one thing and keeps what it is shown."""

    def __init__(self, decision: Decision = DECISION, bits: float = 0.0) -> None:
        super().__init__(SETTING)
        self.bits, self._decision = bits, decision
        self.seen: list[Privatised[Array]] = []

    def see(self, within: Privatised[Array]) -> None:
        self.seen.append(within)


def terms(bits: float = 0.0) -> GroupTerms:
    return GroupTerms(by="adapters", count=2, bits=bits)


def control(controller: Controller) -> ControllerRun:
    return ControllerRun(controller, GROUPS, terms(controller.bits), clip_norm=CLIP)


def scaled(gradient: np.ndarray, bits: float = 0.0) -> np.ndarray:
    """As a mean over sites is, without noise."""
    made = gradient.astype(np.float64)
    for start, end, group in GROUPS.segments:
        made[start:end] *= GroupScaling(GROUPS, terms(bits), DECISION, CLIP).scales[group]
    return made


def mean_of(values: Any, noise: float = 0.0) -> Aggregate:
    return Aggregate(received(np.asarray(values, np.float32)), noise**2, 10.0)


def test_a_gradient_is_scaled_back_group_by_group() -> None:
    gradient = np.random.default_rng(0).standard_normal(SIZE)
    for lift in (1.0, 3.0):
        recording = Recording()
        recording.lift = lift
        made = control(recording).gradient(mean_of(scaled(gradient)))
        assert made.gradient.value == pytest.approx(lift * gradient, rel=1e-5)
        assert made.gradient.trust_model == TrustModel.RECEIVED
        assert made.units == 10.0


@pytest.mark.parametrize("bits", [0.0, 0.2])
def test_noise_of_a_group_is_as_the_formula_says(bits: float) -> None:
    """σC_k / √((1−f)w_k), over what the mean is divided by; over many draws."""
    gradient, noise = np.random.default_rng(1).standard_normal(SIZE) / 50, 0.02  # σC over the units
    controlled, generator = control(Recording(bits=bits)), np.random.default_rng(2)
    mean = np.concatenate([scaled(gradient, bits), np.zeros(controlled.extra)])
    errors = []
    for _ in range(4000):
        made = controlled.gradient(
            mean_of(mean + noise * generator.standard_normal(len(mean)), noise)
        )
        errors.append(made.gradient.value - gradient)
        assert made.noise_variance == 0.0  # not the same in all coordinates
    for group, size in enumerate(GROUPS.sizes):
        expected = noise / CLIP * DECISION.clip_norms[group]
        expected /= ((1 - bits) * DECISION.weights[group]) ** 0.5
        columns = [range(start, end) for start, end, g in GROUPS.segments if g == group]
        drawn = np.array(errors)[:, np.concatenate(columns)]
        assert drawn.std() == pytest.approx(expected, rel=5 / (4000 * size) ** 0.5)


@pytest.mark.parametrize(("bits", "lift"), [(0.0, 1.0), (0.2, 3.0)])
def test_noise_that_is_the_same_in_all_coordinates_is_told(bits: float, lift: float) -> None:
    recording, noise = Recording(EVEN, bits), 0.02
    recording.lift = lift
    controlled = control(recording)
    made = controlled.gradient(mean_of(np.zeros(SIZE + controlled.extra), noise))
    expected = lift * noise / CLIP / ((1 - bits) * 0.5) ** 0.5
    assert made.noise_variance == pytest.approx(expected**2)


def test_it_sees_which_share_was_within_where_it_asked() -> None:
    recording = Recording(bits=0.2)
    controlled = control(recording)
    assert controlled.extra == 2
    bit = 2 * CLIP * (0.2 / 2) ** 0.5
    released = np.concatenate([scaled(np.ones(SIZE), 0.2), [0.25 * bit, -0.5 * bit]])
    made = controlled.gradient(mean_of(released))
    assert made.gradient.value == pytest.approx(np.ones(SIZE), rel=1e-5)
    assert recording.seen == []  # a round that is asked again has the same decision
    controlled.see(mean_of(released))
    [within] = recording.seen
    assert within.value == pytest.approx([0.75, 0.0], abs=1e-6)
    assert within.trust_model == TrustModel.RECEIVED
    without = Recording()
    controlled = control(without)
    controlled.see(mean_of(np.zeros(SIZE)))
    assert (controlled.extra, without.seen) == (0, [])


def quantile() -> ControllerRun:
    return control(make_controller(ControllerSection(name="quantile"), SETTING))


def test_a_gradient_teaches_nothing_before_its_round_is_done() -> None:
    controlled = quantile()
    scaling, decision = controlled.scaling(), controlled.decide()
    released = np.arange(1.0, SIZE + controlled.extra + 1)
    made = controlled.gradient(mean_of(released))
    assert controlled.decide() == decision
    controlled.see(mean_of(released))
    assert controlled.decide() != decision
    expected = scaling.gradient(released.astype(np.float32))
    assert np.array_equal(made.gradient.value, expected)


def test_it_goes_on_from_its_state() -> None:
    generator, first, second = np.random.default_rng(3), quantile(), quantile()
    drawn = [mean_of(generator.normal(0, 0.02, SIZE + first.extra), 0.02) for _ in range(3)]
    for mean in drawn[:2]:
        first.see(mean)
    state = {key: value.copy() for key, value in first.state().value.items()}
    second.restore(restored(state))
    assert second.decide() == first.decide() != quantile().decide()
    one, other = first.gradient(drawn[2]), second.gradient(drawn[2])
    first.see(drawn[2])
    second.see(drawn[2])
    assert np.array_equal(one.gradient.value, other.gradient.value)
    assert second.decide() == first.decide()


def test_raw_values_are_refused() -> None:
    raw: Any = np.zeros(SIZE + 2, dtype=np.float32)
    controlled = quantile()
    decision = controlled.decide()
    for take in (controlled.gradient, controlled.see):
        with pytest.raises(RawValueError):
            take(Aggregate(raw, 0.0, 1.0))
    assert controlled.decide() == decision
    with pytest.raises(RawValueError):
        controlled.restore(controlled.state().value)  # type: ignore[arg-type]


def test_what_it_sees_rests_on_the_sites_word_and_so_does_its_state() -> None:
    """A state that rests on less would say that no private record had a part in it."""
    controlled, generator = quantile(), np.random.default_rng(3)
    assert controlled.state().trust_model == TrustModel.PUBLIC
    for _ in range(3):
        decision = controlled.decide()
        assert controlled.decide() == decision
        controlled.see(mean_of(generator.normal(0, 0.02, SIZE + controlled.extra), 0.02))
        assert controlled.decide() != decision  # of the next round
    assert controlled.state().trust_model == TrustModel.RECEIVED
