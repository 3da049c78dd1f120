"""Choose a job's number format for `compute.dtype = "auto"`, and keep it in the run directory."""

from __future__ import annotations

from typing import Any

from fedpriv.config.job import JobConfig
from fedpriv.methods.proposal import job_recipe
from fedpriv.private_training.number_format import SETTLED, settled_dtype, warn_if_slower
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import computed_in
from fedpriv_server.run_directory import RunDirectory


def settle(config: JobConfig, run: RunDirectory, pool: WorkerPool, *, here: bool) -> JobConfig:
    """Return a job's settings with the number format settled. It stays the same after a resume.

    If the settings ask for a format that is slower than float32, the log says by how much.

    Args:
        here: whether everything is computed on this machine. A trial says nothing of another one.

    Raises:
        FedprivError: ``auto`` is tried, and the model can't be loaded or used.
    """
    warn_if_slower(config.model, config.compute)
    if config.compute.dtype == "auto" and run.info.get("dtype") not in SETTLED:
        exact = not here or config.privacy.numerics == "strict" or not run.info["private"]
        run.info["dtype"] = settled_dtype(job_recipe(config), pool, exact=exact)
    return settled(config, run.info)


def settled(config: JobConfig, info: dict[str, Any]) -> JobConfig:
    """Return a job's settings with the number format that run.json holds, if one was tried."""
    if config.compute.dtype != "auto" or info.get("dtype") not in SETTLED:
        return config
    compute = computed_in(config.compute, info["dtype"])
    return config.model_copy(update={"compute": compute})
