"""`[optimizer]`, `[server_optimizer]` and `[denoise]`: what is made of released values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedpriv.names import MAX_JOB_STEPS
from fedpriv.section import Section

MAX_RATE, MAX_KAPPA = 1e6, 100.0  # beyond, float32 overflows or nothing is ever denoised
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSection(Section):
    """Apply the private gradients: at the server, or at the sites if `job.sync` > 1."""

    name: Literal["sgd", "adamw"] = Field("adamw", description="The optimiser.")
    lr: float = Field(
        1e-3,
        gt=0,
        le=MAX_RATE,
        description="Learning rate. The table is for adamw; sgd needs a value.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="After the warm-up: unchanged (constant), or falling to 0 at the last step"
        " (linear, cosine).",
    )
    warmup: int = Field(
        0, ge=0, le=MAX_JOB_STEPS, description="Steps in which the learning rate rises to lr."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of sgd.")
    betas: tuple[Beta, Beta] = Field(
        (0.9, 0.999), description="Decay rates of adamw for gradients and squared gradients."
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=MAX_RATE,
        description="Share of each value subtracted per step, times the learning rate.",
    )


class ServerOptimizerSection(OptimizerSection):
    """Apply the mean of the sites' own changes (`job.sync` > 1); by default, all of it."""

    name: Literal["sgd", "adamw"] = Field("sgd", description="The optimiser.")
    lr: float = Field(1.0, gt=0, le=MAX_RATE, description="Learning rate; 1 takes the mean whole.")


class DenoiseSection(Section):
    """Removal of noise from released values, which costs no privacy."""

    where: Literal["off", "server", "site"] = Field(
        "off",
        description="Nowhere (off), on the sum of all sites (server), or in local steps of sync"
        " > 1 (site).",
    )
    kappa: float | Literal["auto"] = Field(
        1.02,
        description="Denoise a matrix whose first singular value is this factor above pure"
        f" noise: 1 to {MAX_KAPPA:g}, or auto by its shape.",
    )
    norm: Literal["kept", "unscaled"] = Field(
        "kept",
        description="Length of a denoised matrix: as before (kept), or of what remains (unscaled).",
    )

    @field_validator("kappa", mode="before")
    @classmethod
    def _above_the_noise(cls, value: object) -> object:
        if value != "auto" and not (isinstance(value, int | float) and 1 <= value <= MAX_KAPPA):
            raise ValueError(f"expected a number from 1 to {MAX_KAPPA:g}, or auto")
        return value
