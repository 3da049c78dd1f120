"""A federation with a tiny model, for the tests beside it."""

from __future__ import annotations

from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.config.load import HOSPITALS, load_job

SMALL = ("model.max_length=32", "lora.r=2", 'lora.target_modules=["q_proj"]', "compute.device=cpu")


def federation(model: Path, *overrides: str) -> JobConfig:
    """The embedded example, of a tiny model."""
    return load_job(HOSPITALS, [f"model.name={model}", *SMALL, *overrides])
