"""A controller at its work: what it decides for a round, and what it then sees of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedpriv.config.groups import Decision, GroupTerms
from fedpriv.controllers.base import Controller, Seen, State
from fedpriv.gradients.groups import Groups, GroupScaling
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.public_update.update import Aggregate

Judge = Callable[[Privatised[Vector]], float]
_USED = "shares used"  # in the state


class ControllerRun:
    """Stands between the sites' releases and the server's half of a method.

    Args:
        clip_norm: C, the clip norm of the job's plans.
        judge: returns the loss of a model with these values on public records, if there are any.

    Attributes:
        terms: the terms of the groups, as proposed to sites.
        extra: the number of values in a release besides those of the method.

    Privacy:
        Post-processing of released values, and public records.
    """

    def __init__(
        self,
        controller: Controller,
        groups: Groups,
        terms: GroupTerms,
        *,
        clip_norm: float,
        rounds: int,
        judge: Judge | None = None,
    ) -> None:
        self._controller, self._groups, self.terms = controller, groups, terms
        self._clip_norm, self._rounds, self._judge = clip_norm, rounds, judge
        self.extra = terms.extra
        self._used = 0.0
        # The round that is to be seen, and the values before it.
        self._pending: tuple[Seen, Privatised[Vector]] | None = None

    def decide(self, number: int) -> Decision:
        """Decide for a round; asked again, also after a restart, the decision is the same."""
        return self._controller.decide(number)

    def scaling(self, decision: Decision) -> GroupScaling:
        """Return how a decision scales what sites add up."""
        return GroupScaling(self._groups, self.terms, decision, self._clip_norm)

    def gradient(self, number: int, mean: Aggregate, before: Privatised[Vector]) -> Aggregate:
        """Scale a mean of releases back to what a method releases.

        Args:
            before: the trained values, before the update.
        """
        groups, decision = self._groups, self.decide(number)
        scaling = self.scaling(decision)
        lift = self._controller.lift
        gradient = post_process(lambda one: lift * scaling.gradient(one), mean.gradient)
        deviation = lift * mean.noise_variance**0.5 / scaling.scales
        expected = np.array(groups.sizes) * np.square(deviation)
        used = number / self._rounds if decision.share is None else self._used + decision.share
        seen = Seen(
            number=number,
            decision=decision,
            squared=post_process(lambda one: groups.squared_norms(one) - expected, gradient),
            deviation=tuple(deviation.tolist()),
            within=post_process(scaling.within, mean.gradient) if self.extra else None,
            moved=post_process(lambda one: np.zeros(len(groups)), gradient),  # until it has
            spent=min(used, 1.0),
            loss=None,
        )
        self._pending = seen, post_process(np.copy, before)
        same = float(deviation.max()) == float(deviation.min())
        return replace(
            mean, gradient=gradient, noise_variance=float(deviation[0] ** 2) if same else 0.0
        )

    def see(self, after: Privatised[Vector]) -> None:
        """Let the controller see the round, once its update is made."""
        assert self._pending is not None  # `gradient` came first
        (seen, before), self._pending = self._pending, None
        groups, judge, loss = self._groups, self._judge, None
        if judge is not None:
            loss = post_process(lambda _: judge(after), after)

        def moved(old: Vector, new: Vector) -> np.ndarray[Any, np.dtype[np.float64]]:
            return np.sqrt(groups.squared_norms(new - old))

        self._used += seen.decision.share or 0.0
        moves = post_process(moved, before, after)
        self._controller.see(replace(seen, moved=moves, loss=loss))

    def state(self) -> Privatised[State]:
        """Return everything needed to continue later and decide the same."""
        used = np.array([self._used])
        return post_process(lambda held: {**held, _USED: used}, self._controller.state())

    def restore(self, state: Privatised[State]) -> None:
        """Continue from what `state` returned."""
        self._used = float(state.value[_USED][0])
        self._controller.restore(
            post_process(lambda held: {k: v for k, v in held.items() if k != _USED}, state)
        )
