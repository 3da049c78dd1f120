"""What the server chose between rounds, from released and public values alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.report.rundir import Round


@dataclass(frozen=True)
class Choices:
    """The choices of a whole job; empty or None if there was nothing to choose.

    Attributes:
        denoised: share of matrices in which a signal was found, and the share expected by chance.
        evolved: how many synthetic records are new, and the share of the time that they took.
    """

    denoised: tuple[float, float] | None
    evolved: tuple[int, float] | None

    def __bool__(self) -> bool:
        return any((self.denoised, self.evolved))


def choices(rounds: Sequence[Round]) -> Choices:
    """Return what was chosen in these rounds."""
    return Choices(_denoised(rounds), _evolved(rounds))


def _denoised(rounds: Sequence[Round]) -> tuple[float, float] | None:
    found = [row.denoised for row in rounds if row.denoised is not None]
    matrices = sum(row.matrices for row in found)
    if not matrices:
        return None
    on, chance = sum(row.on for row in found), math.fsum(row.by_chance for row in found)
    return on / matrices, chance / matrices


def _evolved(rounds: Sequence[Round]) -> tuple[int, float] | None:
    found = [row.synthetic for row in rounds if row.synthetic is not None]
    if not found:
        return None
    seconds = math.fsum(row.seconds or 0 for row in rounds)
    spent = math.fsum(one.seconds for one in found)
    return sum(one.made for one in found), min(1.0, spent / seconds) if seconds else 0.0
