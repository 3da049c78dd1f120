"""`[controller]`: who divides the noise among groups of trained parameters, and by what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from fedpriv.config.groups import MAX_BITS, Grouping
from fedpriv.privacy.usual import MAX_CLIP, MIN_CLIP
from fedpriv.section import Section

ControllerName = Literal["fixed", "normalise", "quantile", "sac"]
Positive = Annotated[float, Field(ge=MIN_CLIP, le=MAX_CLIP)]


class FixedSection(Section):
    """Clip norms that do not change."""

    clip_norms: dict[str, Positive] = Field(
        {},
        description="Clip norms by group name. Other groups: privacy.clip_norm × √(the group's"
        " share of all parameters).",
    )


class QuantileSection(Section):
    """Clip norms that follow a quantile of the units' own norms."""

    target: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Share of units that should be within the clip norm of a group.",
    )
    rate: float = Field(
        0.2,
        gt=0,
        le=10,
        description="A clip norm's logarithm moves by rate × (distance of the share from"
        " `target`).",
    )
    bits: float = Field(
        0.05,
        gt=0,
        le=MAX_BITS,
        description="Share of a unit's squared norm spent on reporting which groups were within."
        " Gradient noise grows by 1/√(1 − bits): 2.6% at 0.05.",
    )


class SacSection(Section):
    """Soft actor-critic, which learns its decisions from released values."""

    encoder: int = Field(128, ge=1, le=1024, description="Width of the network's layers.")
    replay: int = Field(10_000, ge=1, le=1_000_000, description="Decisions kept in memory.")
    warm_up: int = Field(
        50,
        ge=0,
        le=100_000,
        description="First decisions, drawn evenly instead of by what was learned.",
    )
    interval: int = Field(1, ge=1, le=100_000, description="Rounds for which a decision holds.")
    updates: int = Field(
        4, ge=1, le=1000, description="Training steps of its networks after each decision."
    )


class ControllerSection(Section):
    """Divides the noise of each round among groups of trained parameters."""

    name: ControllerName = Field(
        "fixed",
        description="Fixed clip norms (fixed), equal lengths (normalise), norms that follow a"
        " quantile (quantile), or a learning controller (sac).",
    )
    groups: Grouping = Field(
        "adapters",
        description="A group: everything trained (model), a layer (layers), A and B of an"
        " adapted layer (adapters), or one matrix (matrices).",
    )
    adaptive: bool = Field(
        False,
        description="For sac: also move noise and sample rate, paid through a privacy filter.",
    )
    data: Path | None = Field(
        None,
        description="Records, of which the first 64 reward sac by their loss: public or the"
        " coordinator's own, columns as in [data], not those of [evaluation]. Without it, the"
        " reward is a released gradient's signal above the noise.",
    )
    fixed: FixedSection = FixedSection()
    quantile: QuantileSection = QuantileSection()
    sac: SacSection = SacSection()

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        for table in get_args(ControllerName):
            if table != self.name and self._is_given(table):
                raise ValueError(
                    f"{table}: belongs to name = {table!r}, and the name is {self.name!r}; leave"
                    " it out"
                )
        if self.adaptive and self.name != "sac":
            raise ValueError(f"adaptive: {self.name!r} decides neither noise nor rate; sac does")
        if self.name != "sac" and self.data is not None:
            raise ValueError(f"data: {self.name!r} looks at no records; leave it out")
        return self

    def _is_given(self, table: str) -> bool:
        """Tell whether a controller's settings are not its defaults, which a run's record has."""
        field = type(self).model_fields.get(table)
        return field is not None and getattr(self, table) != field.default

    def files(self) -> dict[str, Path]:
        """Return the files of records, by key."""
        return {} if self.data is None else {"controller.data": self.data}

    def check_beside(self, *, sync: int, denoise: str, trust: str, looks: bool) -> None:
        """Check that decisions reach each private step, and that its noise is of one size.

        Args:
            sync, denoise, trust: as in the job.
            looks: whether it looks at the sites' held-out records.

        Raises:
            ValueError: names the key.
        """
        if sync > 1:
            raise ValueError(
                "controller: decides before each private step, and with job.sync ="
                f" {sync} sites make several by themselves; leave it out, or use sync = 1"
            )
        if denoise != "off" and self.groups != "model":
            raise ValueError(
                "denoise.where: needs noise of one known size, and with a controller of"
                f" {self.groups} each group has its own; use 'off', or controller.groups = 'model'"
            )
        for key, is_set in (("privacy.trust", trust != "local"), ("evaluation.sites", looks)):
            if self.adaptive and is_set:
                raise ValueError(
                    f"{key}: needs the same noise in every step, and controller.adaptive moves it;"
                    " leave one of them out"
                )
