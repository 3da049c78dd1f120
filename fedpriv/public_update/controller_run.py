"""Run a controller: what it decides for a round, and what it then sees of the round."""

from __future__ import annotations

from dataclasses import replace

from fedpriv.config.groups import Decision, GroupTerms
from fedpriv.controllers.base import Controller, State
from fedpriv.gradients.groups import Groups, GroupScaling
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.public_update.update import Aggregate


class ControllerRun:
    """Stand between the sites' releases and the server's half of a method.

    Args:
        clip_norm: C, the clip norm of the job's plans.

    Attributes:
        terms: the terms of the groups, as proposed to sites.
        extra: the number of values in a release besides those of the method.

    Privacy:
        Post-processing of released values.
    """

    def __init__(
        self, controller: Controller, groups: Groups, terms: GroupTerms, *, clip_norm: float
    ) -> None:
        self._controller, self._groups, self.terms = controller, groups, terms
        self._clip_norm, self.extra = clip_norm, terms.extra

    def decide(self) -> Decision:
        """Decide for the next round; asked again, also after a restart, it says the same."""
        return self._controller.decide()

    def scaling(self) -> GroupScaling:
        """Return how that decision scales what sites add up."""
        return GroupScaling(self._groups, self.terms, self.decide(), self._clip_norm)

    def gradient(self, mean: Aggregate) -> Aggregate:
        """Scale a mean of releases back to what a method releases."""
        scaling, lift = self.scaling(), self._controller.lift
        gradient = post_process(lambda one: lift * scaling.gradient(one), mean.gradient)
        deviation = lift * mean.noise_variance**0.5 / scaling.scales
        same = float(deviation.max()) == float(deviation.min())
        return replace(
            mean, gradient=gradient, noise_variance=float(deviation[0] ** 2) if same else 0.0
        )

    def see(self, mean: Aggregate) -> None:
        """Let the controller see a mean of releases, once its round is done."""
        if self.extra:
            self._controller.see(post_process(self.scaling().within, mean.gradient))

    def state(self) -> Privatised[State]:
        """Return everything needed to continue later and decide the same."""
        return self._controller.state()

    def restore(self, state: Privatised[State]) -> None:
        """Continue from what `state` returned."""
        self._controller.restore(state)
