"""`[job]`: what is run, for how long, and where."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from fedpriv.config.duration import Duration
from fedpriv.config.looks import LooksSection
from fedpriv.names import ADDRESS_OR_AUTO, MAX_JOB_STEPS, MAX_SEED, Name, Wire, has_a_port
from fedpriv.private_training.config import ComputeSection
from fedpriv.public_update.config import DenoiseSection, ServerOptimizerSection
from fedpriv.section import Section


class JobSection(Section):
    """What is run, for how long, and where."""

    name: Name = Field("federation", description="The name of the job and of its run directory.")
    method: str = Field(
        "dp-lora",
        max_length=64,
        description="What a site computes and what the server does with it: dp-lora, pe-sgd, or a"
        " method of another package that is installed.",
    )
    sync: int = Field(
        1,
        ge=1,
        le=1000,
        description="Private steps in a round. Above 1, each site takes them by itself and sends"
        " the move that they made together.",
    )
    rounds: int = Field(
        ge=1, le=100_000, description="Rounds; each has `sync` private steps at every site."
    )
    engine: Literal["inline", "ray", "network"] = Field(
        "inline",
        description="Where sites and server meet: in threads of one process (inline), in processes"
        " of Ray on one machine or several (ray), or over the network (network).",
    )
    ray_address: str | None = Field(
        None,
        pattern=ADDRESS_OR_AUTO,
        description="With engine ray only: the host:port of a Ray cluster that is there already, on"
        " whose machines the sites are, or auto for the one that this machine is part of"
        " ([several machines](models.md#several-machines)). Without it, Ray is started on this"
        " machine for the time of the run.",
    )
    wire: Wire = Field(
        "float32",
        description="The number format in which sites send updates. A shorter one costs no"
        " privacy, because what is rounded was released already.",
    )
    seed: int = Field(
        0,
        ge=0,
        le=MAX_SEED,
        description="Seed of public randomness, such as the adapter's first values; never of noise"
        " or sampling.",
    )
    data_is_public: bool = Field(
        False,
        description="Set it to true for public research data only: it allows runs that protect"
        " nobody, for comparisons.",
    )
    min_sites: int = Field(
        1, ge=1, description="How many sites have to answer for a round to count."
    )
    round_timeout: Duration = Field(
        "10m", description="How long a round waits for the sites, such as 30s or 10m."
    )

    @property
    def steps(self) -> int:
        """Private steps of each site that train, in the whole job."""
        return self.rounds * self.sync

    @field_validator("ray_address")
    @classmethod
    def _of_a_port(cls, value: str | None) -> str | None:
        return value if value is None or value == "auto" else has_a_port(value)


def check_steps(job: JobSection, slots: int, looks: LooksSection | None) -> None:
    """Check that a job has no more steps than any may have.

    Args:
        slots: of the job, spare ones and those of looks among them.

    Raises:
        ValueError: it has; names the key.
    """
    if job.steps > MAX_JOB_STEPS:
        raise ValueError(f"job.sync: {job.rounds} × {job.sync} steps are more than {MAX_JOB_STEPS}")
    if slots > MAX_JOB_STEPS:
        key, added = "evaluation.sites.looks", "those of all looks"
        if looks is None:
            key, added = "privacy.spare_slots", "the spare ones"
        raise ValueError(f"{key}: with {added}, {slots} steps are more than {MAX_JOB_STEPS}")


def check_engine(job: JobSection, compute: ComputeSection) -> None:
    """Check that what is for Ray is with Ray, and nothing that Ray decides itself.

    Raises:
        ValueError: it isn't; names the key.
    """
    if job.engine != "ray":
        if compute.gpus_per_site is not None:
            raise ValueError("compute.gpus_per_site: is for engine 'ray'")
        if job.ray_address is not None:
            raise ValueError("job.ray_address: is for engine 'ray'")
    elif compute.devices > 1:
        raise ValueError("compute.devices: with engine 'ray', each site has one device")
    elif ":" in compute.device:
        raise ValueError("compute.device: with engine 'ray', Ray says which GPU; use auto")


def check_movers(sync: int, denoise: DenoiseSection, later: ServerOptimizerSection | None) -> None:
    """Check that who consumes the private gradients denoises them, where their noise is known.

    Args:
        sync: private steps in a round.
        later: moves along the sites' own moves.

    Raises:
        ValueError: names the key.
    """
    if sync == 1 and denoise.where == "site":
        raise ValueError(
            "denoise.where: 'site' is for local steps, and job.sync is 1; use 'server'"
        )
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
    """Check that a job computes with what reads quantised weights.

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
