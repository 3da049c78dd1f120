"""`[optimizer]`, `[server_optimizer]` and `[denoise]`: what is made of released values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedpriv.names import MAX_JOB_STEPS
from fedpriv.section import Section

MAX_RATE, MAX_KAPPA = 1e6, 100.0  # beyond, float32 overflows or nothing is ever denoised
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSection(Section):
    """Moves along the private gradients: at the server, or at the sites where `job.sync` > 1."""

    name: Literal["sgd", "adamw"] = Field("adamw", description="The optimiser.")
    lr: float = Field(
        1e-3,
        gt=0,
        le=MAX_RATE,
        description="Learning rate. The table has rates of adamw only, so with sgd it has to be"
        " written down.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="How the rate changes after the warm-up: not at all, or down to nothing at the"
        " last step.",
    )
    warmup: int = Field(
        0,
        ge=0,
        le=MAX_JOB_STEPS,
        description="Steps of this optimiser in which the rate rises to lr.",
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of sgd.")
    betas: tuple[Beta, Beta] = Field(
        (0.9, 0.999), description="How slowly adamw forgets gradients, and their squares."
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=MAX_RATE,
        description="How much of every value is taken off in a step, times the rate.",
    )


class ServerOptimizerSection(OptimizerSection):
    """Moves along the mean of the sites' own moves (`job.sync` > 1); by default, takes it whole."""

    name: Literal["sgd", "adamw"] = Field("sgd", description="The optimiser.")
    lr: float = Field(1.0, gt=0, le=MAX_RATE, description="Learning rate; 1 takes the mean whole.")


GATE = (
    "a gate is no longer there: what is better after one step was the worse way, by 0.169 in the"
    " loss (docs/results/denoising.md); use 'server' or 'off'"
)


class DenoiseSection(Section):
    """Taking noise out of what was released, which costs no privacy."""

    where: Literal["off", "server", "site"] = Field(
        "off",
        description="Where it is done: nowhere (off), on the sum of all sites (server), or in the"
        " local steps of sync > 1 (site).",
    )
    kappa: float | Literal["auto"] = Field(
        1.02,
        description="How far above the edge of pure noise the first singular value has to be for a"
        f" matrix to be denoised, from 1 to {MAX_KAPPA:g}; with auto, by the matrix's shape.",
    )
    norm: Literal["kept", "unscaled"] = Field(
        "kept",
        description="The length of a denoised matrix: the one it had before (kept), or that of"
        " what is left (unscaled).",
    )

    @field_validator("where", mode="before")
    @classmethod
    def _no_gate(cls, value: object) -> object:
        if value == "gate":
            raise ValueError(GATE)
        return value

    @field_validator("kappa", mode="before")
    @classmethod
    def _above_the_noise(cls, value: object) -> object:
        if value != "auto" and not (isinstance(value, int | float) and 1 <= value <= MAX_KAPPA):
            raise ValueError(f"expected a number from 1 to {MAX_KAPPA:g}, or auto")
        return value
