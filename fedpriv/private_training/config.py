"""`[compute]`: how and on what private gradients are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedpriv.section import Section

BESIDE_QUANTISED = {  # of `compute`, with `model.quantize`: all but the weights is float32
    "dtype": ("float32", "mixed", "auto"),
    "engine": ("fedpriv", "auto"),
}


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
        description="Private records that are computed at once, at most. Without it, as many as"
        " pay, up to 4, or 32 on a GPU.",
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
    engine: Literal["auto", "fedpriv", "opacus"] = Field(
        "auto",
        description="Which library computes the gradient of each record; opacus is slower and"
        " knows more kinds of layers. With auto, fedpriv does where it knows all that is trained,"
        " else opacus, and the log says so.",
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
        if self.engine == "opacus" and self.not_for_opacus:
            raise ValueError(f"{self.not_for_opacus} needs engine 'fedpriv'")
        if self.gpus_per_site is not None and self.gpus_per_site > 1 and self.gpus_per_site % 1:
            raise ValueError("gpus_per_site: above 1, only whole GPUs")
        return self

    @property
    def is_tried(self) -> bool:
        """Whether what `dtype` gains or costs depends on the machine."""
        return self.dtype not in ("float32", "float64")

    @property
    def not_for_opacus(self) -> str | None:
        """A setting with which opacus can't compute."""
        if self.dtype == "mixed":
            return "dtype: 'mixed'"
        return "gradient_checkpointing: true" if self.gradient_checkpointing else None

    def not_beside_quantised(self) -> tuple[str, Any, Sequence[str]] | None:
        """The first key, its value and the ones it may have, that can't read quantised weights."""
        for key, known in BESIDE_QUANTISED.items():
            if getattr(self, key) not in known:
                return key, getattr(self, key), known
        return None
