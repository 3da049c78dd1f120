"""Define what a job commits a site to."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.shares import share_of
from fedpriv.privacy.usual import MAX_MEMBERS, MAX_NOISE, MAX_STEPS, Numerics


@dataclass(frozen=True)
class Plan:
    """`steps` slots of one mechanism, committed together.

    Attributes:
        job: the job's id, unique for this ledger.
        noise_multiplier: standard deviation of the noise over the sensitivity.
        proposal: the digest of all that was proposed, so that none of it can change.
        numerics: ``strict`` when sums and noise are exact integers on a grid that the plan fixes.
        max_colluding: how many of the sites in a secure sum may work with the server, or forget
            their noise, without the claim with trust being lost; None when the site adds all of
            its noise by itself.
        shares: into how many parts the noise of a slot is divided at most; 1 when it is not.
        ticks: whether public settings alone decide when a reply leaves (law 19).

    Raises:
        AccountingError: a value of the wrong type, or out of its range.

    Privacy:
        `noise_multiplier` is that of the sum: what is paid for it under the claim with trust is
        the same, shared or not. Under the claim alone, `alone` is what is paid for.
    """

    job: str
    method: str
    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int
    proposal: str = field(repr=False)
    numerics: Numerics = "default"
    max_colluding: int | None = None
    shares: int = 1
    ticks: bool = False

    def __post_init__(self) -> None:
        texts = (self.job, self.method, self.proposal)
        numbers = (self.sample_rate, self.noise_multiplier, self.clip_norm)
        checks = (
            ("texts", all(type(text) is str for text in texts)),
            ("numbers", all(type(number) in (int, float) for number in numbers)),
            ("steps", type(self.steps) is int and 1 <= self.steps <= MAX_STEPS),
            ("sample_rate", 0 < self.sample_rate <= 1),
            ("noise_multiplier", 0 < self.noise_multiplier <= MAX_NOISE),
            ("clip_norm", 0 < self.clip_norm <= sys.float_info.max),
            ("numerics", self.numerics in get_args(Numerics)),
            ("max_colluding", self.max_colluding is None or _is_count(self.max_colluding, 0)),
            ("shares", _is_count(self.shares, 1) and (self.is_shared or self.shares == 1)),
            ("ticks", type(self.ticks) is bool),
        )
        for name, holds in checks:
            if not holds:
                raise AccountingError(f"Expected {name} in range, got {self!r}.")

    @property
    def is_shared(self) -> bool:
        """Whether the sites of a secure sum add the noise of a slot together."""
        return self.max_colluding is not None

    def epsilon(self, delta: float) -> float:
        """Return what all of the plan costs by itself.

        Raises:
            AccountingError: when δ is outside (0, 1).
        """
        return epsilon_upper([self.event()], delta)

    @property
    def alone(self) -> Plan:
        """The plan as it is if nobody else's noise counts: with the noise of the smallest share."""
        if not self.is_shared:
            return self
        noise = share_of(self.noise_multiplier, self.shares)
        return replace(self, noise_multiplier=noise, max_colluding=None, shares=1)

    def as_row(self) -> dict[str, Any]:
        """Return the fields as a ledger keeps them. Older kinds of plan keep their old fields."""
        fields = asdict(self)
        if not self.is_shared:
            del fields["max_colluding"], fields["shares"]
        if not self.ticks:
            del fields["ticks"]
        return fields

    def event(self, steps: int | None = None) -> Event:
        """Return all of its steps as planned, or as many as are given."""
        return Event(
            self.sample_rate, self.noise_multiplier, self.steps if steps is None else steps
        )


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_MEMBERS
