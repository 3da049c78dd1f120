"""What all controllers share: how they begin, divide noise, take in a round and are kept.

With clip norms C_k, weights w_k and the plan's σ, the noise in a coordinate of group k is
σC_k/√w_k (Gaussian noise σC on values that were scaled by C√w_k/C_k). Over all coordinates its
energy is σ² Σ size_k C_k²/w_k, and under Σ w_k = 1 that is least where w_k is proportional to
C_k √size_k: the derivative, size_k C_k²/w_k², is then the same in every group. So a controller
that decides clip norms alone has these weights.

Source:
    McMahan, Andrew et al. 2018, "A General Approach to Adding Differential Privacy to Iterative
    Training Procedures", for the division of least noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpriv.config.groups import MIN_SHARE, MIN_WEIGHT, Decision
from fedpriv.controllers.interface import Array, Seen, Setting, State
from fedpriv.errors import RunError
from fedpriv.privacy import usual
from fedpriv.privacy.mechanism.privatised import Privatised, post_process, public

MAX_VALUE = 1e15  # of a norm; its square still adds up
MAX_LOSS = 1e6


@dataclass(frozen=True)
class Round:
    """A round as a controller may use it: numbers within bounds, whatever came.

    Attributes:
        squared, deviation, moved: as in `Seen`, finite.
        within: as in `Seen`; NaN for a group of which nothing is known.
        spent: in [0, 1].
        loss: finite, or None.
    """

    number: int
    decision: Decision
    squared: Array
    deviation: Array
    within: Array
    moved: Array
    spent: float
    loss: float | None


class Controller:
    """Decides before each round; lets nothing raw in, and keeps what its state rests on.

    A controller says what it decides, and what it learns from a round (`_learn`). Its state is the
    float64 arrays in `_kept`.

    Attributes:
        bits: f, the share of a unit's squared norm that it needs for `Seen.within`; 0 for none.
        together: whether the scaled vector of a unit is clipped as a whole.
        lift: what the server multiplies the mean gradient by (and the deviation of its noise),
            after it has divided each group by its scale; 1 where updates have their usual size
            already.
    """

    bits = 0.0
    together = False
    lift = 1.0

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._basis: Privatised[None] = public(None)  # before any round: settings and a seed
        self._kept: State = {}

    def decide(self, number: int) -> Decision:
        """Decide for a round, from 1. Asked twice, it says the same: it changes nothing."""
        raise NotImplementedError

    def see(self, seen: Seen) -> None:
        """Take in a round, once, after it.

        Raises:
            RawValueError: a value in it is raw; nothing was changed.
            ValueError: there are not as many values as groups; nothing was changed.

        Privacy:
            Post-processing of released values.
        """
        known = [seen.squared, seen.moved, seen.within, seen.loss]
        values = [value for value in known if value is not None]

        def learn(*_: object) -> None:
            self._learn(_tame(seen, self.setting.count))

        self._basis = post_process(learn, self._basis, *values)

    def state(self) -> Privatised[State]:
        """Return everything needed to continue later, as named arrays."""
        return post_process(lambda _: self._arrays(), self._basis)

    def restore(self, state: Privatised[State]) -> None:
        """Go on from what `state` returned, bit for bit.

        Raises:
            RawValueError: the state is raw.
            RunError: it is of another controller or of other groups; nothing was changed.
        """
        self._basis = post_process(self._put, state)

    def _learn(self, seen: Round) -> None:
        """Learn nothing."""

    def _arrays(self) -> State:
        return {name: value.copy() for name, value in self._kept.items()}

    def _put(self, state: State) -> None:
        check_state(state, {name: value.shape for name, value in self._kept.items()})
        self._kept = {name: np.array(state[name], np.float64) for name in self._kept}


def start_clip_norms(setting: Setting) -> Array:
    """Return C_k = C √(size_k / P), (K,): every scale is 1, and the squares add up to C²."""
    return np.clip(setting.clip_norm * np.sqrt(setting.shares), usual.MIN_CLIP, usual.MAX_CLIP)


def least_noise(clip_norms: Array, setting: Setting) -> Array:
    """Return weights (K,), of any sum, that give the noise of all coordinates least energy."""
    return clip_norms * np.sqrt(setting.shares)


def decision_of(
    clip_norms: Array, weights: Array, share: float | None = None, rate: float = 1.0
) -> Decision:
    """Return the allowed decision nearest to these values, all finite and positive.

    Args:
        clip_norms, weights: (K,); weights of any sum.
    """
    weights = np.asarray(weights, np.float64)
    parts = np.maximum(weights / weights.max(), 0.0)
    parts = np.maximum(parts / parts.sum(), 2 * MIN_WEIGHT)
    return Decision(
        clip_norms=tuple(np.clip(clip_norms, usual.MIN_CLIP, usual.MAX_CLIP).tolist()),
        weights=tuple((parts / parts.sum()).tolist()),
        share=None if share is None else min(max(share, MIN_SHARE), 1.0),
        rate=rate,
    )


def check_state(state: State, expected: Mapping[str, tuple[int, ...] | None]) -> None:
    """Refuse a state that is not of these names, shapes (None: any) and finite values.

    Raises:
        RunError: says which it is.
    """
    if state.keys() != expected.keys():
        raise RunError(
            f"The state of a controller has {', '.join(sorted(state)) or 'nothing'}, expected"
            f" {', '.join(sorted(expected)) or 'nothing'}: it is of another controller."
        )
    for name, shape in expected.items():
        found = np.shape(state[name])
        if shape is not None and found != shape:
            raise RunError(
                f"The state of a controller has {name} of {found}, expected {shape}: it is of"
                " other groups."
            )
        if not np.isfinite(state[name]).all():
            raise RunError(f"The state of a controller has a {name} that is not finite.")


def _tame(seen: Seen, count: int) -> Round:
    """Make harmless what is no number or beyond bounds in a round."""
    within = np.full(count, math.nan) if seen.within is None else seen.within.value
    loss = None if seen.loss is None else float(seen.loss.value)
    return Round(
        number=seen.number,
        decision=seen.decision,
        squared=_finite(
            _numbers(seen.squared.value, count, "squared"), -(MAX_VALUE**2), MAX_VALUE**2
        ),
        deviation=_finite(_numbers(seen.deviation, count, "deviation"), 0.0, MAX_VALUE),
        within=np.clip(_numbers(within, count, "within"), -MAX_VALUE, MAX_VALUE),
        moved=_finite(_numbers(seen.moved.value, count, "moved"), 0.0, MAX_VALUE),
        spent=float(np.clip(np.nan_to_num(seen.spent, nan=0.0), 0.0, 1.0)),
        loss=None if loss is None or not abs(loss) <= MAX_LOSS else loss,
    )


def _numbers(values: object, count: int, name: str) -> Array:
    found = np.asarray(values, np.float64)
    if found.shape != (count,):
        raise ValueError(f"{name}: expected {count} values, one for each group, got {found.shape}")
    return found


def _finite(values: Array, least: float, most: float) -> Array:
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=most, neginf=least), least, most)
