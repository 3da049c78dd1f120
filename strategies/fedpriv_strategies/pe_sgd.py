"""The server's half of PE-SGD: coefficients come in, a gradient of the synthetic set goes on."""

from __future__ import annotations

import logging
from typing import Any

from fedpriv.errors import FedprivError
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, require_privatised
from fedpriv.synthetic.evolution import Evolution
from fedpriv.synthetic.records import SetChange, SyntheticSet
from fedpriv.training.update import Aggregate
from fedpriv_strategies.rounds import DpLoraStrategy

log = logging.getLogger(__name__)


class PeSgdStrategy(DpLoraStrategy):
    """As DP-LoRA, over the coefficients of a synthetic set that evolves.

    A site is sent the set once, and what changed after that. What a site holds is what it
    answered for last; one that holds another says so before it spends anything, and is sent all.

    Args:
        evolution: holds the set.
    """

    def __init__(self, *arguments: Any, evolution: Evolution, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.evolution = evolution
        self._held: dict[int, str] = {}  # node → digest of its set
        self._coefficients: Privatised[Vector] | None = None  # of the last mean

    @property
    def _values(self) -> int:
        return self.evolution.span.values(self.update.size)

    @property
    def _start(self) -> float:
        return 0.0  # no move in the span

    def _change(self, node: int) -> SetChange | None:
        current, previous = self.evolution.current, self.evolution.previous
        now = require_privatised(current, "current")
        held = self._held.get(node)
        known: list[Privatised[SyntheticSet]] = [current, *([previous] if previous else [])]
        base = next((one.value for one in known if one.value.digest == held), None)
        return SetChange.between(base, now)

    def _answered(self, node: int, *, usable: bool) -> None:
        """Remember what a node holds: what it was asked about, or nothing that is known."""
        if usable:
            self._held[node] = self.evolution.current.value.digest
        else:
            self._held.pop(node, None)

    def _scale(self, released: Aggregate) -> float:
        """From the mean to the sum of a step: of local ones, to what they were made of at SGD."""
        local = self.proposal.local
        if local is None:
            return released.units
        return released.units / (local.optimizer.lr * local.count)

    def _lifted(self, released: Aggregate) -> Aggregate:
        gradient, self._coefficients = self.evolution.lift(released.gradient, self.update.vector)
        return Aggregate(gradient, 0.0, released.units)

    def _moved(self, released: Aggregate, number: int) -> None:
        assert self._coefficients is not None  # they were lifted before
        scale = self._scale(released)
        try:
            self.outcome.evolved = self.evolution.advance(self._coefficients, scale, number)
        except Exception as error:  # the model has moved, and must not do so again
            why = str(error) if isinstance(error, FedprivError) else type(error).__name__
            log.warning("Round %d: the synthetic set stays as it is. %s", number, why)
