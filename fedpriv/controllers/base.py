"""Define what all controllers share: how they begin, divide noise, take in a round, are kept.

With clip norms C_k, weights w_k and the plan's σ, the noise in a coordinate of group k is
σC_k/√w_k (Gaussian noise σC on values that were scaled by C√w_k/C_k). Over all coordinates its
energy is σ² Σ size_k C_k²/w_k, and under Σ w_k = 1 that is least where w_k is proportional to
C_k √size_k: the derivative, size_k C_k²/w_k², is then the same in every group. So a controller
that decides clip norms alone has these weights.

A controller runs at the server. Before each round it says how the plan's noise is divided among
groups of trained parameters. It sees public numbers and released values only.

Privacy:
    No site trusts it. Whatever a decision says, what a unit adds to a step stays within the plan's
    clip norm (`fedpriv.config.groups`). So a controller costs nothing, but for the `bits` that it
    asks for.

Source:
    McMahan, Andrew et al. 2018, "A General Approach to Adding Differential Privacy to Iterative
    Training Procedures", for the division of least noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.config.groups import MIN_WEIGHT, Decision
from fedpriv.errors import RunError
from fedpriv.privacy import usual
from fedpriv.privacy.mechanism.privatised import (
    Privatised,
    post_process,
    public,
    require_privatised,
)

MAX_VALUE = 1e15  # limit of a noisy share; more is noise

Array = np.ndarray[Any, np.dtype[np.float64]]
State = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Setting:
    """The facts of a job that are known before its first round. All are public.

    Attributes:
        groups: the names of the K groups.
        sizes: the number of parameters of each group.
        clip_norm: C, the plan's clip norm.

    Raises:
        ValueError: there are no groups, or a size is not a size.
    """

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    clip_norm: float

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


class Controller:
    """Decide before each round. Let nothing raw in, and keep what the state rests on.

    A controller says what it decides, and what it learns from a round (`_learn`). Its state is the
    float64 arrays in `_kept`.

    Attributes:
        bits: f, the share of a unit's squared norm that says which groups were within their clip
            norm; 0 for none.
        lift: what the server multiplies the mean gradient by (and the deviation of its noise),
            after it has divided each group by its scale; 1 where updates have their usual size
            already.
    """

    bits = 0.0
    lift = 1.0
    _decision: Decision

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._basis: Privatised[None] = public(None)  # before any round: settings
        self._kept: State = {}

    def decide(self) -> Decision:
        """Decide for the next round. Asked twice, it says the same: it changes nothing.

        By default, a controller decides the same in every round.
        """
        return self._decision

    def see(self, within: Privatised[Array]) -> None:
        """Take in a round, once, after it.

        Args:
            within: for each group (K,), the noisy share of units within its clip norm.

        Raises:
            RawValueError: the value is raw; nothing was changed.
            ValueError: there are not as many values as groups; nothing was changed.

        Privacy:
            Post-processing of released values.
        """

        def learn(_: object, found: object) -> None:
            shares = np.asarray(found, np.float64)
            if shares.shape != (self.setting.count,):
                count = self.setting.count
                raise ValueError(f"within: expected {count} values, got {shares.shape}")
            self._learn(np.clip(shares, -MAX_VALUE, MAX_VALUE))

        self._basis = post_process(learn, self._basis, within)

    def state(self) -> Privatised[State]:
        """Return everything needed to continue later, as named arrays."""
        arrays = {name: value.copy() for name, value in self._kept.items()}
        return post_process(lambda _: arrays, self._basis)

    def restore(self, state: Privatised[State]) -> None:
        """Go on from what `state` returned, bit for bit.

        Raises:
            RawValueError: the state is raw.
            RunError: it is of another controller or of other groups; nothing was changed.
        """
        require_privatised(state, "state")
        self._basis = post_process(self._put, state)

    def _learn(self, within: Array) -> None:
        """Learn nothing."""

    def _put(self, state: State) -> None:
        _check_state(state, {name: value.shape for name, value in self._kept.items()})
        self._kept = {name: np.array(state[name], np.float64) for name in self._kept}


def start_clip_norms(setting: Setting) -> Array:
    """Return C_k = C √(size_k / P), (K,): every scale is 1, and the squares add up to C²."""
    return np.clip(setting.clip_norm * np.sqrt(setting.shares), usual.MIN_CLIP, usual.MAX_CLIP)


def least_noise(clip_norms: Array, setting: Setting) -> Array:
    """Return weights (K,), of any sum, that give the noise of all coordinates least energy."""
    return clip_norms * np.sqrt(setting.shares)


def decision_of(clip_norms: Array, weights: Array) -> Decision:
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
    )


def _check_state(state: State, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a state that is not of these names, shapes and finite values.

    Raises:
        RunError: it is not. The error says why.
    """
    if state.keys() != expected.keys():
        raise RunError(
            f"The state of a controller has {', '.join(sorted(state)) or 'nothing'}, expected"
            f" {', '.join(sorted(expected)) or 'nothing'}: it is of another controller."
        )
    for name, shape in expected.items():
        found = np.shape(state[name])
        if found != shape:
            raise RunError(
                f"The state of a controller has {name} of {found}, expected {shape}: it is of"
                " other groups."
            )
        if not np.isfinite(state[name]).all():
            raise RunError(f"The state of a controller has a {name} that is not finite.")
