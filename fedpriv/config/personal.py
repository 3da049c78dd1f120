"""`[personal]`: a site's own models, trained on its records without noise; they never leave it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedpriv.config.section import Section

Rate = Annotated[float, Field(gt=0, le=1e6)]


class PersonalSection(Section):
    """A site's own adapter: trained on its own records without noise, and never handed on."""

    rates: tuple[Rate, ...] = Field(
        (3e-3, 1e-2),
        min_length=1,
        description="Learning rates to choose from, by the loss on the site's own validation"
        " records.",
    )
    validation: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="Share of the site's units that training stops by, and learns nothing from; at"
        " least two units. With 0 it learns from all and makes all `epochs` passes, at a rate that"
        " falls linearly to nothing, for a site with so few units that some of them would mislead.",
    )
    batch_size: int = Field(8, ge=1, le=65536, description="Records of a step.")
    epochs: int = Field(50, ge=1, le=10_000, description="The most passes over the records.")
    epochs_alone: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="The same for a model that begins without the federation's adapter, and so has"
        " further to go; `epochs` if left out.",
    )
    patience: int = Field(
        3, ge=1, description="Passes without a lower loss on the validation records before it ends."
    )
    beside: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="The federation's share of the weight where its model and the site's own answer"
        " together, in two rows of `fedpriv-client evaluate`.",
    )

    @model_validator(mode="after")
    def _can_choose(self) -> Self:
        if not self.validation and len(self.rates) > 1:
            raise ValueError(
                "rates: expected one, as validation = 0 leaves no records to choose a rate by"
            )
        return self

    def beginning(self, kind: Literal["personal", "alone"]) -> PersonalSection:
        """As it holds for a model that begins at the federation's adapter, or without it."""
        if kind == "personal" or self.epochs_alone is None:
            return self
        return self.model_copy(update={"epochs": self.epochs_alone})
