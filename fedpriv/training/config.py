"""`[compute]`, `[optimizer]`, `[server_optimizer]` and `[denoise]`: how it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedpriv.defaults import ANY_SIZE
from fedpriv.names import MAX_JOB_STEPS
from fedpriv.section import Section

BESIDE_QUANTISED = {  # of `compute`, with `model.quantize`: all but the weights is float32
    "dtype": ("float32", "mixed", "auto"),
    "engine": ("fedpriv",),
}
MAX_RATE, MAX_KAPPA = 1e6, 100.0  # beyond, float32 overflows or nothing is ever denoised
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSection(Section):
    """Moves along the private gradients: at the server, or at the sites where `job.sync` > 1."""

    name: Literal["sgd", "adamw"] = Field("adamw", description="The optimiser.")
    lr: float = Field(
        ANY_SIZE.lr,
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
    " loss (docs/results.md); use 'server' or 'off'"
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
        description=f"How far above the edge of pure noise a singular value has to be to count,"
        f" from 1 to {MAX_KAPPA:g}; with auto, by the matrix's shape.",
    )
    norm: Literal["kept", "shrunk"] = Field(
        "kept",
        description="The length of a denoised matrix: the one it had before (kept), or that of"
        " what is left (shrunk).",
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


class ComputeSection(Section):
    """How and on what the work is done. It changes no claim."""

    device: str = Field("auto", description="Where the model is: auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "float32", "mixed", "bfloat16", "float64"] = Field(
        "float32",
        description="Number format of the model. With mixed, products with frozen weights are in"
        " bfloat16 and all else in float32; with bfloat16, all but what is trained is in it. With"
        " auto, a job is computed in mixed where a short trial finds that faster and as exact"
        " ([models](models.md#auto)), else in float32.",
    )
    microbatch: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Private records that are computed at once, at most. Without it, 4, or 32 on a"
        " GPU.",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Compute layers twice instead of keeping what they made: less memory, more"
        " time.",
    )
    devices: int = Field(
        1,
        ge=1,
        le=64,
        description="GPUs of a site that share each step, from `device` on; on a CPU, processes.",
    )
    gpus_per_site: float | None = Field(
        None,
        gt=0,
        description="With job.engine = ray only: how many GPUs a site gets while it computes, such"
        " as 0.5. Without it, an equal share.",
    )
    engine: Literal["fedpriv", "opacus"] = Field(
        "fedpriv",
        description="Which library computes the gradient of each record; opacus is slower and"
        " knows more kinds of layers.",
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Sites of a simulation that compute at once; threads share one base, processes"
        " have a copy each."
        " Without it, one, or on a CPU as many as there are cores while the copies are small.",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.dtype == "mixed" and self.engine != "fedpriv":
            raise ValueError("dtype: 'mixed' needs engine 'fedpriv'")
        if self.gradient_checkpointing and self.engine != "fedpriv":
            raise ValueError("gradient_checkpointing: needs engine 'fedpriv'")
        if self.gpus_per_site is not None and self.gpus_per_site > 1 and self.gpus_per_site % 1:
            raise ValueError("gpus_per_site: above 1, only whole GPUs")
        return self

    @property
    def is_tried(self) -> bool:
        """Whether what `dtype` gains or costs depends on the machine."""
        return self.dtype not in ("float32", "float64")

    def not_beside_quantised(self) -> tuple[str, Any, Sequence[str]] | None:
        """The first key, its value and the ones it may have, that can't read quantised weights."""
        for key, known in BESIDE_QUANTISED.items():
            if getattr(self, key) not in known:
                return key, getattr(self, key), known
        return None
