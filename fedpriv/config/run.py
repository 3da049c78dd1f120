"""`[job]`: what the job runs, for how long, and where."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedpriv.config.duration import Duration
from fedpriv.config.looks import LooksSection
from fedpriv.names import MAX_JOB_STEPS, MAX_SEED, Name, Wire
from fedpriv.private_training.config import ComputeSection
from fedpriv.public_update.config import DenoiseSection, ServerOptimizerSection
from fedpriv.section import Section


class JobSection(Section):
    """What the job runs, for how long, and where."""

    name: Name = Field("federation", description="Name of the job and its run directory.")
    method: str = Field(
        "dp-lora",
        max_length=64,
        description="Computation of sites and server: dp-lora, pe-sgd, or an installed method of"
        " another package.",
    )
    sync: int = Field(
        1,
        ge=1,
        le=1000,
        description="Private steps in a round. Above 1, a site takes them alone and sends the"
        " resulting change.",
    )
    rounds: int = Field(
        ge=1, le=100_000, description="Rounds, each with `sync` private steps at every site."
    )
    engine: Literal["inline", "ray", "network"] = Field(
        "inline",
        description="Where sites run: in threads of one process (inline), in Ray processes"
        " (ray), or over the network (network).",
    )
    average: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the rounds, the last ones, whose values are averaged. The mean is the"
        " adapter. 0 takes the values of the last round.",
    )
    wire: Wire = Field(
        "float32", description="Number format of sites' updates. A shorter one costs no privacy."
    )
    seed: int = Field(
        0,
        ge=0,
        le=MAX_SEED,
        description="Seed of public randomness, such as the adapter's first values; never of"
        " noise or sampling.",
    )
    data_is_public: bool = Field(
        False, description="Allow unprotected runs, for comparisons. For public research data only."
    )
    min_sites: int = Field(1, ge=1, description="Fewest sites that must answer a round.")
    round_timeout: Duration = Field(
        "10m", description="How long a round waits for the sites, such as 30s or 10m."
    )

    @property
    def steps(self) -> int:
        """The private steps of each site that train, in the whole job."""
        return self.rounds * self.sync


def check_steps(job: JobSection, slots: int, looks: LooksSection | None) -> None:
    """Check that a job has no more steps than any job may have.

    Args:
        slots: the job's slots, including spare ones and those of looks.

    Raises:
        ValueError: it has more; names the key.
    """
    if job.steps > MAX_JOB_STEPS:
        raise ValueError(f"job.sync: {job.rounds} × {job.sync} steps are more than {MAX_JOB_STEPS}")
    if slots > MAX_JOB_STEPS:
        with_looks = "evaluation.sites.looks: with those of all looks"
        added = with_looks if looks else "privacy.spare_slots: with the spare ones"
        raise ValueError(f"{added}, {slots} steps are more than {MAX_JOB_STEPS}")


def check_engine(job: JobSection, compute: ComputeSection) -> None:
    """Check that settings for Ray are only used with Ray, and none that Ray decides itself.

    Raises:
        ValueError: they are not; names the key.
    """
    if job.engine != "ray":
        if compute.gpus_per_site is not None:
            raise ValueError("compute.gpus_per_site: is for engine 'ray'")
    elif compute.devices > 1:
        raise ValueError("compute.devices: with engine 'ray', each site has one device")
    elif ":" in compute.device:
        raise ValueError("compute.device: with engine 'ray', Ray says which GPU; use auto")


def check_movers(sync: int, denoise: DenoiseSection, later: ServerOptimizerSection | None) -> None:
    """Check that gradients are denoised by the side that moves along them, if at all.

    Args:
        sync: the private steps in a round.
        later: the optimiser that moves along the sites' own moves.

    Raises:
        ValueError: another side would denoise, or `later` has no moves; names the key.
    """
    if sync == 1 and denoise.where == "site":
        problem = "'site' is for local steps, and job.sync is 1; use 'server'"
        raise ValueError(f"denoise.where: {problem}")
    if sync == 1 and later is not None:
        raise ValueError(
            "server_optimizer: moves along the sites' own moves, and job.sync is 1, so that"
            " optimizer moves at the server; leave it out"
        )
    if sync > 1 and denoise.where == "server":
        raise ValueError(
            f"denoise.where: 'server' needs noise of one known size, and with job.sync ="
            f" {sync} the server gets moves; use 'site'"
        )


def check_quantised(compute: ComputeSection) -> None:
    """Check that a job's compute settings work with quantised weights.

    Raises:
        ValueError: it doesn't; names the key.
    """
    found = compute.not_beside_quantised()
    if found is not None:
        key, value, known = found
        raise ValueError(
            f"compute.{key}: {value!r} can't be used with model.quantize, beside which all else"
            f" is float32; use {' or '.join(known)}"
        )
