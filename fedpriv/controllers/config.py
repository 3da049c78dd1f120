"""`[controller]`: who divides the noise among groups of trained parameters, and by what."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from fedpriv.config.groups import MAX_BITS, Grouping
from fedpriv.privacy.usual import MAX_CLIP, MIN_CLIP
from fedpriv.section import Section

ControllerName = Literal["fixed", "normalise", "quantile"]
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


class ControllerSection(Section):
    """Divides the noise of each round among groups of trained parameters."""

    name: ControllerName = Field(
        "fixed",
        description="Fixed clip norms (fixed), equal lengths (normalise), or norms that follow a"
        " quantile (quantile).",
    )
    groups: Grouping = Field(
        "adapters",
        description="A group: everything trained (model), a layer (layers), A and B of an"
        " adapted layer (adapters), or one matrix (matrices).",
    )
    fixed: FixedSection = FixedSection()
    quantile: QuantileSection = QuantileSection()

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        for table in get_args(ControllerName):
            if table != self.name and self._is_given(table):
                raise ValueError(
                    f"{table}: belongs to name = {table!r}, and the name is {self.name!r}; leave"
                    " it out"
                )
        return self

    def _is_given(self, table: str) -> bool:
        """Tell whether a controller's settings are not its defaults, which a run's record has."""
        field = type(self).model_fields.get(table)
        return field is not None and getattr(self, table) != field.default

    def check_beside(self, *, sync: int, denoise: str) -> None:
        """Check that decisions reach each private step, and that its noise is of one size.

        Args:
            sync, denoise: as in the job.

        Raises:
            ValueError: one does not hold. The error names the key.
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
