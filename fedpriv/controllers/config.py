"""`[controller]`: who divides the noise among groups of trained parameters, and by what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedpriv.config.groups import MAX_BITS, Grouping
from fedpriv.privacy.usual import MAX_CLIP, MIN_CLIP
from fedpriv.section import Section

ControllerName = Literal["fixed", "normalise", "quantile", "geometry", "schedule", "sac"]
ADAPTIVE: tuple[ControllerName, ...] = ("schedule", "sac")  # that can use a filter
MAX_SPAN = 100.0
Positive = Annotated[float, Field(ge=MIN_CLIP, le=MAX_CLIP)]


class FixedSection(Section):
    """Clip norms that stay what they are."""

    clip_norms: dict[str, Positive] = Field(
        {},
        description="The clip norm of groups, by name. That of a group which is not named is"
        " privacy.clip_norm times the root of the group's share of all parameters.",
    )


class NormaliseSection(Section):
    """Every unit's part in a group gets the same length."""

    shrink: float = Field(
        1e-3,
        gt=0,
        le=1,
        description="The clip norm of every group, relative to that of fixed: so small that every"
        " unit is clipped.",
    )


class QuantileSection(Section):
    """Clip norms that follow a quantile of the units' own norms."""

    target: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="The share of units whose group should be within its clip norm.",
    )
    rate: float = Field(
        0.2,
        gt=0,
        le=10,
        description="How fast a clip norm follows: its logarithm moves by so much times the"
        " distance of the share from `target`.",
    )
    bits: float = Field(
        0.05,
        gt=0,
        le=MAX_BITS,
        description="The share of a unit's squared norm that is spent on saying which groups were"
        " within. The gradient's own noise is larger by 1/√(1 − bits), so at 0.05 by 2.6%.",
    )


class GeometrySection(Section):
    """Scales of least noise in all, from the released gradients."""

    decay: float = Field(
        0.9, ge=0, lt=1, description="How slowly squared norms of earlier rounds are forgotten."
    )
    floor: float = Field(
        0.01,
        gt=0,
        le=1,
        description="The least that the squared norm of a group counts, relative to what it would"
        " be if all parameters were alike.",
    )


class ScheduleSection(Section):
    """Clip norms, and in an adaptive job noise and rate, that change over the rounds."""

    end_clip: float = Field(
        1.0,
        ge=1 / MAX_SPAN,
        le=MAX_SPAN,
        description="Clip norms of the last round, relative to the first.",
    )
    end_noise: float = Field(
        1.0,
        ge=1 / MAX_SPAN,
        le=MAX_SPAN,
        description="With adaptive: the noise multiplier of the last round, relative to the first."
        " How large the first is follows from the budget.",
    )
    end_rate: float = Field(
        1.0,
        ge=1 / MAX_SPAN,
        le=MAX_SPAN,
        description="With adaptive: the sample rate of the last round, relative to the first. The"
        " largest of all is privacy.sample_rate.",
    )
    shape: Literal["linear", "exponential"] = Field(
        "exponential",
        description="How the factors go from 1 to their ends: by equal steps (linear), or by equal"
        " factors (exponential).",
    )


class SacSection(Section):
    """Soft actor-critic: learns from released values what to decide."""

    encoder: int = Field(128, ge=1, le=1024, description="Values between the network's layers.")
    replay: int = Field(10_000, ge=1, le=1_000_000, description="Decisions that it remembers.")
    warm_up: int = Field(
        50,
        ge=0,
        le=100_000,
        description="Decisions at the beginning that are drawn evenly, before what was learned"
        " decides.",
    )
    policy: Path | None = Field(
        None,
        description="File of what was learned before on public or made-up tasks of as many groups,"
        " as benchmarks/policy.py writes it. It decides from the first round on, without a"
        " warm_up, and goes on learning.",
    )
    interval: int = Field(1, ge=1, le=100_000, description="Rounds for which a decision stands.")
    updates: int = Field(
        4, ge=1, le=1000, description="Steps of its own optimisers after each decision."
    )
    batch: int = Field(
        64, ge=1, le=65_536, description="Remembered decisions that such a step learns from."
    )
    lr: float = Field(3e-4, gt=0, le=1, description="Learning rate of its networks.")
    gamma: float = Field(
        0.99, ge=0, lt=1, description="How much a reward of the next decision counts now."
    )
    tau: float = Field(
        0.005, gt=0, le=1, description="How fast the slow copies of the critics follow them."
    )
    entropy: float = Field(
        -1.0,
        ge=-MAX_SPAN,
        le=0,
        description="How random its decisions stay: the target entropy of each value that it"
        " decides, in nats; lower is less random.",
    )
    clip_range: float = Field(
        4.0,
        ge=1,
        le=MAX_SPAN,
        description="A clip norm stays within this factor of where it began.",
    )
    weight_range: float = Field(
        4.0,
        ge=1,
        le=MAX_SPAN,
        description="The weight of a group that makes least noise in all is multiplied or divided"
        " by up to this, before all are made to sum to 1.",
    )
    pace_range: float = Field(
        2.0,
        ge=1,
        le=MAX_SPAN,
        description="With adaptive: a round may spend up to so many times as much as an even share"
        " of what is left of the budget, or as little.",
    )


class ControllerSection(Section):
    """Divides the noise of each round among groups of trained parameters."""

    name: ControllerName = Field(
        "fixed",
        description="Who decides: clip norms that stay (fixed); all parts made equally long"
        " (normalise); clip norms that follow a quantile (quantile); scales of least noise"
        " (geometry); a change over the rounds (schedule); or a controller that learns (sac).",
    )
    groups: Grouping = Field(
        "adapters",
        description="What a group is: all that is trained (model), a layer of the model (layers),"
        " A and B of an adapted layer together (adapters), or each matrix (matrices).",
    )
    adaptive: bool = Field(
        False,
        description="Whether rounds may have other noise and another rate than the plan's, paid"
        " for through a filter; for schedule and sac.",
    )
    data: Path | None = Field(
        None,
        description="File of records by whose loss sac is rewarded: public or the coordinator's"
        " own, with columns as in [data], and not those of [evaluation]. Without it, the reward is"
        " what stands out of the noise of a released gradient.",
    )
    records: int = Field(
        64, ge=1, le=100_000, description="How many of these records, at most; the first ones."
    )
    fixed: FixedSection = FixedSection()
    normalise: NormaliseSection = NormaliseSection()
    quantile: QuantileSection = QuantileSection()
    geometry: GeometrySection = GeometrySection()
    schedule: ScheduleSection = ScheduleSection()
    sac: SacSection = SacSection()

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        tables = ("fixed", "normalise", "quantile", "geometry", "schedule", "sac")
        for table in tables:
            if table != self.name and table in self.model_fields_set:
                raise ValueError(
                    f"{table}: belongs to name = {table!r}, and the name is {self.name!r}; leave"
                    " it out"
                )
        if self.adaptive and self.name not in ADAPTIVE:
            raise ValueError(
                f"adaptive: {self.name!r} decides neither noise nor rate; it is for"
                f" {' and '.join(ADAPTIVE)}"
            )
        if self.name != "sac" and self.data is not None:
            raise ValueError(f"data: {self.name!r} looks at no records; leave it out")
        for table, keys in (("schedule", ("end_noise", "end_rate")), ("sac", ("pace_range",))):
            for key in keys:
                if not self.adaptive and key in getattr(self, table).model_fields_set:
                    raise ValueError(f"{table}.{key}: is for adaptive = true; leave it out")
        return self

    def files(self) -> dict[str, Path]:
        """The files of records, by key."""
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
