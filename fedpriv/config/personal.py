"""`[personal]`: a site's own models, trained on its records without noise; they never leave it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from fedpriv.config.ehr import EhrSources
from fedpriv.config.site_file import SiteData, SiteFile
from fedpriv.names import OwnKind
from fedpriv.section import Section

Rate = Annotated[float, Field(gt=0, le=1e6)]
MANY = 100  # units: from this many on, one left-out part tells enough
MOST = 50  # passes


@dataclass(frozen=True)
class OwnTraining:
    """Say how one own model of a site is trained.

    Attributes:
        rates: the learning rates to choose from; only one if nothing is chosen.
        batch_size: the records of a step.
        epochs: the most passes over the records; the exact number if nothing is chosen.
        patience: how many passes may fail to lower the left-out loss before a rate ends.
    """

    rates: tuple[float, ...]
    batch_size: int
    epochs: int
    patience: int


class PersonalSection(Section):
    """A site's own adapter: trained on its own records without noise, never handed on."""

    rates: tuple[Rate, ...] = Field(
        (1e-3, 3e-3, 1e-2),
        min_length=1,
        description="Learning rates to choose from, by the site's records.",
    )
    validation: float = Field(
        0.25,
        ge=0,
        le=0.5,
        description="Share of units left out at a time to choose rate and passes: each unit"
        f" once (cross-validation), or one share from {MANY} units. The final training uses all"
        " units. With 0, the one rate and all `epochs` are used.",
    )
    batch_size: int = Field(8, ge=1, le=65536, description="Records of a step.")
    epochs: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description=f"Most passes over the records. Without it, `epochs_alone`, else {MOST}."
        " validation = 0 needs one of them, and makes all passes.",
    )
    epochs_alone: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="The same without the federation's adapter at the start. Without it, `epochs`.",
    )
    patience: int = Field(
        3, ge=1, description="Passes without a lower left-out loss before a rate ends."
    )
    beside: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Weight of the federation's model in joint answers with the site's own."
        f" Sites of {MANY} units or more choose it by their records.",
    )

    @model_validator(mode="after")
    def _can_choose(self) -> Self:
        without = "as validation = 0 leaves no records to choose"
        if not self.validation and len(self.rates) > 1:
            raise ValueError(f"rates: expected one, {without} a rate by")
        if not self.validation and self.epochs is None and self.epochs_alone is None:
            raise ValueError(f"epochs: is missing, {without} it by")
        return self

    def beginning(self, kind: OwnKind) -> OwnTraining:
        """Return the settings for an own model: "personal" begins at the federation's adapter."""
        named = (self.epochs, self.epochs_alone)
        first, second = named if kind == "personal" else reversed(named)
        return OwnTraining(self.rates, self.batch_size, first or second or MOST, self.patience)


class OwnSiteData(EhrSources, SiteData):
    """The records, and what the site states about them."""


class OwnSiteFile(SiteFile):
    """A whole site file, with what the site does for itself beside serving."""

    data: OwnSiteData
    personal: PersonalSection = PersonalSection()
