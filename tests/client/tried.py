"""What a site's doctor found of a job that it tried."""

from __future__ import annotations

from collections.abc import Iterable

from fedpriv.doctor.finding import Finding


class Tried:
    """Findings by kind.

    Attributes:
        refusals: why the site would refuse, each with the exit code of a budget.
        unchecked: what could not be found out.
        cost: what taking part costs, and whether somebody is asked; empty if it would refuse.
        step: what a step takes; empty if none was made.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        found = list(findings)
        jobs = [one for one in found if one.what == "job"]
        self.refusals = [one.found for one in jobs if one.ok is False]
        self.unchecked = [one.found for one in jobs if one.ok is None]
        self.cost = ". ".join(one.found for one in jobs if one.ok)
        self.step = ". ".join(one.found for one in found if one.what == "step")
        assert all(one.exit_code == 4 for one in jobs if one.ok is False)
