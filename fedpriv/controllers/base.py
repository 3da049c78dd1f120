"""What all controllers share: how they begin, divide noise, take in a round and are kept.

With clip norms C_k, weights w_k and the plan's σ, the noise in a coordinate of group k is
σC_k/√w_k (Gaussian noise σC on values that were scaled by C√w_k/C_k). Over all coordinates its
energy is σ² Σ size_k C_k²/w_k, and under Σ w_k = 1 that is least where w_k is proportional to
C_k √size_k: the derivative, size_k C_k²/w_k², is then the same in every group. So a controller
that decides clip norms alone has these weights.

A controller runs at the server. Before each round it says how the plan's noise is divided among
groups of trained parameters, and in an adaptive job how much noise there is. It sees public
numbers and released values only.

Privacy:
    No site trusts it. Whatever a decision says, what a unit adds to a step stays within the plan's
    clip norm (`fedpriv.config.groups`), and in an adaptive job a site refuses a slot that would
    overrun the budget. So a controller costs nothing, but for the `bits` that it asks for.

Source:
    McMahan, Andrew et al. 2018, "A General Approach to Adding Differential Privacy to Iterative
    Training Procedures", for the division of least noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.config.groups import MIN_SHARE, MIN_WEIGHT, Decision
from fedpriv.errors import RunError
from fedpriv.privacy import usual
from fedpriv.privacy.accounting.filter import RdpFilter
from fedpriv.privacy.mechanism.privatised import (
    Privatised,
    post_process,
    public,
    require_privatised,
)

MAX_VALUE = 1e15  # of a norm; its square still adds up
MAX_LOSS = 1e6


Array = np.ndarray[Any, np.dtype[np.float64]]
State = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Setting:
    """The facts of a job that are known before its first round. All are public.

    Attributes:
        groups: the names of the K groups.
        sizes: the number of parameters of each group.
        rounds: the number of the job's rounds.
        clip_norm: C, the plan's clip norm.
        seed: the seed of a controller that draws something.
        filter: the filter of an adaptive job's plan; None in other jobs.

    Raises:
        ValueError: there are no groups, or a size is not a size.
    """

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    rounds: int
    clip_norm: float
    seed: int = 0
    filter: RdpFilter | None = None

    def __post_init__(self) -> None:
        if not self.groups or len(self.groups) != len(self.sizes) or min(self.sizes) < 1:
            raise ValueError(f"expected a size for each group, got {self.groups}, {self.sizes}")

    @property
    def count(self) -> int:
        """K, the number of groups."""
        return len(self.groups)

    @property
    def shares(self) -> Array:
        """The share of all parameters that is in each group, (K,)."""
        sizes = np.asarray(self.sizes, np.float64)
        return np.asarray(sizes / sizes.sum())


@dataclass(frozen=True)
class Seen:
    """What a controller sees of a completed round.

    Attributes:
        number: the number of the round, from 1.
        decision: the decision for the round.
        squared: of each group (K,), ‖g‖² − size · deviation² of the mean gradient g: without
            bias, and so negative at times.
        deviation: (K,), of the noise in a coordinate of the mean gradient; public.
        within: of each group (K,), the noisy share of units within its clip norm; None where the
            controller asked for no bits.
        moved: the norm of the update of each group (K,).
        spent: the used share of the filter's budget, or of the rounds.
        loss: the loss after the round, on public or synthetic records; None without any.
    """

    number: int
    decision: Decision
    squared: Privatised[Array]
    deviation: tuple[float, ...]
    within: Privatised[Array] | None
    moved: Privatised[Array]
    spent: float
    loss: Privatised[float] | None


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
        lift: what the server multiplies the mean gradient by (and the deviation of its noise),
            after it has divided each group by its scale; 1 where updates have their usual size
            already.
    """

    bits = 0.0
    lift = 1.0
    _decision: Decision

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._basis: Privatised[None] = public(None)  # before any round: settings and a seed
        self._kept: State = {}

    def decide(self, number: int) -> Decision:
        """Decide for a round, from 1. Asked twice, it says the same: it changes nothing.

        Of itself, a controller decides the same in every round.
        """
        return self._decision

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
        require_privatised(state, "state")
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
