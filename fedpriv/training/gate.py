"""Of several moves along one released gradient, take the one that public records like best."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.errors import ConfigError
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.training.config import GateSection

if TYPE_CHECKING:
    from fedpriv.data.encode import Example
    from fedpriv.models.vector import Vector

Judge = Callable[[Sequence["Example"], Privatised["Vector"]], float]
# A trained record is as much work as so many that are looked at: forwards, and back again.
PASSES = 2
FEWEST = 4  # records by which to choose


@dataclass(frozen=True)
class Choice:
    """What was taken in a round, and why.

    Attributes:
        taken: name of the move.
        losses: of every move, on the same records; None where it was not finite.
        records: how many they were; 0 where the share allowed too few to choose by.
    """

    taken: str
    losses: dict[str, float | None]
    records: int


class Gate:
    """Chooses by the loss on a few public records, others in every round.

    How many is a function of public settings, so that a run is the same on any machine: as much
    work as `share` of the records that all sites together are expected to train on in the round.

    Args:
        examples: public or the coordinator's own.
        judge: the loss of a model with these values on some of them.
        seed: of the choice of records, public.

    Attributes:
        rates: multiples of the learning rate to choose from.

    Privacy:
        Post-processing: it looks at moves made from released values, and at public records.

    Raises:
        ConfigError: there are no records.
    """

    def __init__(
        self, settings: GateSection, examples: Sequence[Example], judge: Judge, seed: int
    ) -> None:
        if len(examples) < FEWEST:
            raise ConfigError(
                f"has {len(examples)} records, and {FEWEST} are the fewest to choose by",
                key="gate.data",
                value=settings.data,
            )
        self.rates = settings.rates
        self._settings, self._examples = settings, examples
        self._judge, self._seed = judge, seed

    def choose(
        self,
        moves: Mapping[str, Callable[[], Privatised[Vector]]],
        *,
        number: int,
        units: float,
    ) -> Choice:
        """Try every move, and say which had the lowest loss; of equal ones, the first.

        The first it is, too, where the share allows fewer than `FEWEST` records.

        Args:
            moves: name → makes the values after that move.
            number: of the round.
            units: that all sites together are expected to train on in it.
        """
        allowed = int(self._settings.share * units * PASSES / len(moves))
        if allowed < FEWEST:
            return Choice(next(iter(moves)), {}, 0)
        drawn = random.Random(f"{self._seed} {number}").sample(
            self._examples, min(allowed, len(self._examples))
        )
        losses = {name: self._judge(drawn, move()) for name, move in moves.items()}
        known = {name: loss if math.isfinite(loss) else None for name, loss in losses.items()}
        taken = min(losses, key=lambda name: math.inf if known[name] is None else losses[name])
        return Choice(taken, known, len(drawn))
