"""`[evaluation]`: the server's own records, by which it measures what training reached."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from fedpriv.config.looks import LooksSection
from fedpriv.section import Section


class EvaluationSection(Section):
    """The records on which the server measures what training reached."""

    data: Path = Field(
        description="File of records to report on: public or the coordinator's own, with columns"
        " as in [data]."
    )
    every: int = Field(1, ge=1, description="Rounds from one evaluation to the next.")
    limit: int | None = Field(
        None, ge=1, description="Use the first so many records only. Without it, all."
    )
    hardest: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the records, those that are worst for the base model, whose loss is"
        " reported by itself, too.",
    )
    tuning: Path | None = Field(
        None,
        description="File of further records by which `fedpriv compare` chooses settings.",
    )
    tuning_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of `data` that is set apart to choose settings by, where no `tuning` is"
        " named.",
    )
    stop_when_worse: bool = Field(
        False,
        description="End the run after an evaluation that finds the model worse than before"
        " training: on the records here, or in a look at the sites' held-out ones by more than its"
        " noise. What was reserved stays spent. Otherwise the log says so once.",
    )
    sites: LooksSection | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.tuning is not None and self.tuning_share:
            raise ValueError("tuning and tuning_share exclude each other: name a file or a share")
        return self

    def files(self) -> dict[str, Path]:
        """The files of evaluation records, by key."""
        found = {"evaluation.data": self.data, "evaluation.tuning": self.tuning}
        return {key: path for key, path in found.items() if path is not None}
