"""Say what a job takes of a budget for life, as a report has it."""

from __future__ import annotations

from pydantic import Field

from fedpriv.section import Section

MOST = 10**9  # the most that anybody may state


class Life(Section):
    """Shares of a budget for life, under the claim that has least left."""

    taken: float = Field(ge=0, le=MOST, description="by all jobs, this one with them")
    job: float = Field(ge=0, le=MOST, description="by this one")
    more: int = Field(ge=-1, le=MOST, description="like it that fit, up to 100; -1: not it")
