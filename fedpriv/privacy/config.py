"""`[privacy]`: what a coordinator proposes; what a site grants is in the site's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from fedpriv.names import MAX_JOB_STEPS, RecordsPerUnit, Unit
from fedpriv.privacy import usual
from fedpriv.section import Section


class PrivacySection(Section):
    """What the server proposes; what a site grants is in the site's own file."""

    epsilon: float = Field(
        8.0,
        gt=0,
        description="ε that is proposed to every site for this whole job. A site takes the smaller"
        " of this and its own cap.",
    )
    delta: float = Field(
        usual.DELTA, gt=0, lt=1, description="δ of the claim; below 1 / declared size of any site."
    )
    sample_rate: float = Field(0.05, gt=0, le=1, description="Chance of each unit to be in a step.")
    clip_norm: float = Field(
        usual.clip_norm_of(labels=False),
        ge=usual.MIN_CLIP,
        le=usual.MAX_CLIP,
        description="The longest that what one unit adds to a step may be, in the L2 norm.",
    )
    unit: Unit = usual.UNIT
    max_records_per_unit: RecordsPerUnit = usual.MAX_RECORDS_PER_UNIT
    numerics: Literal["default", "strict"] = Field(
        "default",
        description="With strict, each record is computed alone and sums are whole numbers, so"
        " that how computers round is no longer among the assumptions; slower.",
    )
    trust: Literal["local", "secure-sum"] = Field(
        "local",
        description="Who adds the noise. With local, every site all that its claim needs. With"
        " secure-sum, the server learns only the sum of a round, and each site adds a share; the"
        " claim then assumes that at most `max_colluding` sites work with the server, and every"
        " site enforces a second one that assumes nothing"
        " ([secure sum](../explanation/secure-sum.md)).",
    )
    max_colluding: int | None = Field(
        None,
        ge=0,
        le=usual.MAX_MEMBERS,
        description="With secure-sum: how many of the sites in a sum may work with the server, or"
        " forget their noise, without the claim being lost. More cost noise. Without it, 1 of up to"
        " four sites, and of n sites (n − 1) / 2, rounded down.",
    )
    spare_slots: int = Field(
        0,
        ge=0,
        le=MAX_JOB_STEPS,
        description="With secure-sum: steps beside those of the rounds, paid for with them, with"
        " which a job goes on after a step that could not be completed.",
    )
    roster: Path | None = Field(
        None,
        description="With secure-sum over the network: the coordinator's copy of the roster, the"
        " names and keys of the sites.",
    )
