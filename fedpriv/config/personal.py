"""`[personal]`: a site's own models, trained on its records without noise; they never leave it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from fedpriv.config.section import Section
from fedpriv.config.task import Task

Rate = Annotated[float, Field(gt=0, le=1e6)]
OwnKind = Literal["personal", "alone"]  # what a site trains for itself
OWN_KINDS: tuple[OwnKind, ...] = get_args(OwnKind)
FEW = 100  # units: a fifth of fewer misleads as often as it helps (docs/results.md)
SHARE = 0.2  # of more than that is kept apart
MOST = 50  # passes, where validation records say when it is enough
PASSES: dict[Task, dict[OwnKind, int]] = {  # where nothing says it: this by the root of n examples
    "causal-lm": {"personal": 96, "alone": 144},
    "classification": {"personal": 8, "alone": 64},
}


@dataclass(frozen=True)
class OwnTraining:
    """How one own model of a site is trained.

    Attributes:
        rates: learning rates to choose from, one where there are no validation records.
        batch_size: records of a step.
        epochs: the most passes over the records, or where there are no validation records, all.
        patience: passes without a lower loss on the validation records before a rate ends.
    """

    rates: tuple[float, ...]
    batch_size: int
    epochs: int
    patience: int


class PersonalSection(Section):
    """A site's own adapter: trained on its own records without noise, and never handed on."""

    rates: tuple[Rate, ...] = Field(
        (3e-3, 1e-2),
        min_length=1,
        description="Learning rates to choose from, by the loss on the site's own validation"
        " records; the first of them where there are none.",
    )
    validation: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Share of the site's units that training stops by, and learns nothing from; at"
        f" least two units. Left out, it is {SHARE} of {FEW} units or more, and 0 of fewer, some of"
        " which would mislead. With 0 it learns from all and makes all `epochs` passes, at a rate"
        " that falls linearly to nothing.",
    )
    batch_size: int = Field(8, ge=1, le=65536, description="Records of a step.")
    epochs: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description=f"The most passes over the records, {MOST} if left out. Without validation"
        " records all of them are made; left out, over n examples"
        f" {PASSES['causal-lm']['personal']}/√n, and {PASSES['classification']['personal']}/√n in a"
        " classification.",
    )
    epochs_alone: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="The same for a model that begins without the federation's adapter, and so has"
        " further to go; if left out, `epochs`, and if that is left out, too, without validation"
        f" records {PASSES['causal-lm']['alone']}/√n, or {PASSES['classification']['alone']}/√n.",
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
        if self.validation == 0 and len(self.rates) > 1:
            raise ValueError(
                "rates: expected one, as validation = 0 leaves no records to choose a rate by"
            )
        return self

    def share(self, units: int) -> float:
        """Of a site's units, so many, those that training stops by; 0 is none."""
        if self.validation is not None:
            return self.validation
        return SHARE if units >= FEW else 0.0

    def beginning(self, kind: OwnKind, task: Task, *, examples: int, stops: bool) -> OwnTraining:
        """As it holds for a model that begins at the federation's adapter, or without it.

        Args:
            examples: to learn from.
            stops: whether there are validation records to stop by.
        """
        named = (self.epochs_alone or self.epochs) if kind == "alone" else self.epochs
        few = max(1, round(PASSES[task][kind] / math.sqrt(examples)))
        epochs = named or (MOST if stops else few)
        rates = self.rates if stops else self.rates[:1]
        return OwnTraining(rates, self.batch_size, epochs, self.patience)
