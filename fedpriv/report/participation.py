"""Which sites took part in which rounds, as the server saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.report.figures import ranges
from fedpriv.report.rundir import Round, RunDirectory, SiteRound

NOT_ASKED = "not asked"  # the status in a round in which a site does not appear
_DIGITS = 1e-6  # share of ε by which the same steps may differ


@dataclass(frozen=True)
class Participation:
    """The participation of one site.

    Attributes:
        took_part: the number of rounds in which it took part.
        missed: what happened instead, and in which rounds, in words.
        last: the figures that came with its last reply; only the site's word, not signed.
    """

    site: str
    took_part: int
    missed: tuple[tuple[str, str], ...]
    last: SiteRound | None


def participation(directory: RunDirectory) -> list[Participation]:
    """Return the participation of every site that was asked in a round."""
    rounds = directory.rounds
    asked = sorted({name for row in rounds for name in row.sites})
    return [_of(name, rounds) for name in asked]


def older_reports(directory: RunDirectory) -> list[str]:
    """Return sites that said they had spent more than their signed report states.

    They signed it before the job went on, for example when it was interrupted, and no newer report
    came.
    """
    last = {one.site: one.last for one in participation(directory)}
    return [
        report.site
        for report in directory.reports
        if (said := last.get(report.site)) is not None
        and said.epsilon_spent is not None
        and said.epsilon_spent > report.epsilon_spent * (1 + _DIGITS)
    ]


def _of(name: str, rounds: Sequence[Round]) -> Participation:
    found = [row.sites.get(name) for row in rounds]
    statuses = [NOT_ASKED if one is None else one.status for one in found]
    missed = {
        status: ranges(
            row.round for row, one in zip(rounds, statuses, strict=True) if one == status
        )
        for status in dict.fromkeys(statuses)
        if status != "ok"
    }
    said = [one for one in found if one is not None and one.epsilon_spent is not None]
    return Participation(
        site=name,
        took_part=statuses.count("ok"),
        missed=tuple(missed.items()),
        last=said[-1] if said else None,
    )
