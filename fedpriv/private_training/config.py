"""`[compute]`: how and on what private gradients are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedpriv.section import Section

BESIDE_QUANTISED = {  # values beside `model.quantize`: all but the weights is float32
    "dtype": ("float32", "mixed"),
    "engine": ("fedpriv", "auto"),
}


class ComputeSection(Section):
    """The hardware and number format. They change no claim."""

    device: str = Field("auto", description="Device of the model: auto, cpu, cuda or cuda:N.")
    dtype: Literal["float32", "mixed", "bfloat16", "float64"] = Field(
        "float32",
        description="Number format. mixed: products with frozen weights in bfloat16, all else in"
        " float32. bfloat16: all but what is trained.",
    )
    microbatch: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Most private records computed at once. Without it, as many as pay, up to 4,"
        " or 32 on a GPU.",
    )
    gradient_checkpointing: bool = Field(
        False, description="Compute layers twice: less memory, more time."
    )
    devices: int = Field(
        1,
        ge=1,
        le=64,
        description="GPUs for each step of a site, counted from `device`; on a CPU, processes.",
    )
    gpus_per_site: float | None = Field(
        None,
        gt=0,
        description="With job.engine = ray: GPUs per computing site, such as 0.5. Without it, an"
        " equal share.",
    )
    engine: Literal["auto", "fedpriv", "opacus"] = Field(
        "auto",
        description="Library for each record's gradient. opacus is slower and knows more kinds"
        " of layers. auto: fedpriv if it knows every trained layer, else opacus; the log says so.",
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Sites of a simulation that compute at once. Without it, one, or on a CPU"
        " one per core while model copies are small. Threads share one base model; processes copy"
        " it.",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.engine == "opacus" and self.not_for_opacus:
            raise ValueError(f"{self.not_for_opacus} needs engine 'fedpriv'")
        if self.gpus_per_site is not None and self.gpus_per_site > 1 and self.gpus_per_site % 1:
            raise ValueError("gpus_per_site: above 1, only whole GPUs")
        return self

    @property
    def is_halved(self) -> bool:
        """Whether products are in bfloat16, which is slow on some machines."""
        return self.dtype in ("mixed", "bfloat16")

    @property
    def not_for_opacus(self) -> str | None:
        """The setting with which opacus can't compute; None without any."""
        if self.dtype == "mixed":
            return "dtype: 'mixed'"
        return "gradient_checkpointing: true" if self.gradient_checkpointing else None

    def not_beside_quantised(self) -> tuple[str, Any, Sequence[str]] | None:
        """Return the first key that can't read quantised weights, its value and allowed values."""
        for key, known in BESIDE_QUANTISED.items():
            if getattr(self, key) not in known:
                return key, getattr(self, key), known
        return None
