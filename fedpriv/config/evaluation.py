"""`[evaluation]`: the server's own records, on which it measures the model."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from fedpriv.config.looks import LooksSection
from fedpriv.section import Section


class EvaluationSection(Section):
    """The records on which the server measures the model."""

    data: Path = Field(
        description="Records to report on: public or the coordinator's own, columns as in [data]."
    )
    every: int = Field(1, ge=1, description="Rounds between evaluations.")
    limit: int | None = Field(
        None, ge=1, description="Records to use, from the first. Without it, all."
    )
    tuning: Path | None = Field(
        None, description="Further records by which `fedpriv compare` chooses settings."
    )
    tuning_share: float = Field(
        0.0, ge=0, lt=1, description="Share of `data` to choose settings by, without `tuning`."
    )
    stop_when_worse: bool = Field(
        False,
        description="End the run when the model is worse than before training: on these records,"
        " or on sites' held-out records by more than the look's noise. Reserved budget stays"
        " spent. If false, only log it.",
    )
    sites: LooksSection | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.tuning is not None and self.tuning_share:
            raise ValueError("tuning and tuning_share exclude each other: name a file or a share")
        return self

    def files(self) -> dict[str, Path]:
        """Return the files of evaluation records, by key."""
        tuning = {"evaluation.tuning": self.tuning} if self.tuning is not None else {}
        return {"evaluation.data": self.data, **tuning}
