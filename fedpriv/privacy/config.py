"""`[privacy]`: what a coordinator proposes; what a site grants is in the site's own file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from fedpriv.names import MAX_JOB_STEPS, RecordsPerUnit, Unit
from fedpriv.privacy import usual
from fedpriv.section import Section


class PrivacySection(Section):
    """The privacy that the server proposes; the site's own file says what the site grants."""

    later: ClassVar[tuple[str, ...]] = ("normalise",)
    epsilon: float = Field(
        8.0,
        gt=0,
        description="ε proposed to every site for the job. A site takes its own cap if smaller.",
    )
    delta: float = Field(
        usual.DELTA, gt=0, lt=1, description="δ of the claim; below 1 / declared size of any site."
    )
    sample_rate: float = Field(
        0.05, gt=0, le=1, description="Probability that a unit is part of a step."
    )
    clip_norm: float = Field(
        usual.clip_norm_of(labels=False),
        ge=usual.MIN_CLIP,
        le=usual.MAX_CLIP,
        description="Largest L2 norm of what one unit adds to a step.",
    )
    normalise: Literal["adapters"] | None = Field(
        None,
        description="Gives each adapter's part of a unit's vector a fixed length, in place of"
        " clipping the whole"
        " ([methods](../explanation/methods.md#normalised-gradients-privacynormalise)).",
    )
    unit: Unit = usual.UNIT
    max_records_per_unit: RecordsPerUnit = usual.MAX_RECORDS_PER_UNIT
    numerics: Literal["default", "strict"] = Field(
        "default",
        description="strict computes each record alone and sums whole numbers. The claim then"
        " assumes nothing about rounding; steps are slower.",
    )
    trust: Literal["local", "secure-sum"] = Field(
        "local",
        description="local: each site adds all the noise its claim needs. secure-sum: each adds"
        " a share; the server learns only the sum. The claim holds while at most `max_colluding`"
        " sites work with the server; each site also enforces a second claim without this"
        " assumption ([secure sum](../explanation/secure-sum.md)).",
    )
    max_colluding: int | None = Field(
        None,
        ge=0,
        le=usual.MAX_MEMBERS,
        description="With secure-sum: how many sites of a sum may work with the server, or leave"
        " out noise, while the claim holds. More cost noise. Default: 1 of up to four sites, else"
        " (n − 1) / 2 rounded down.",
    )
    spare_slots: int = Field(
        0,
        ge=0,
        le=MAX_JOB_STEPS,
        description="With secure-sum: steps paid in advance, to continue after a failed step.",
    )
    roster: Path | None = Field(
        None, description="With secure-sum over the network: the coordinator's copy of the roster."
    )
