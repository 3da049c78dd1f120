"""The number format of a site whose `compute.dtype` is `"auto"` or a short one."""

from __future__ import annotations

from dataclasses import replace

from fedpriv.config.site_file import SiteFile
from fedpriv.models.config import ModelSection
from fedpriv.private_training.number_format import settled_dtype, warn_if_slower
from fedpriv.private_training.pool import Inspect, WorkerPool
from fedpriv.private_training.worker import ModelRecipe, computed_in
from fedpriv.protocol import Proposal


def model_of(file: SiteFile) -> ModelSection:
    """Return the model that a site allows, as far as its own file describes it."""
    name, labels = file.allow.model, file.data.labels
    if labels:
        return ModelSection(name=name, task="classification", labels=labels)
    return ModelSection(name=name)


def warn(file: SiteFile) -> None:
    """Log a warning if the number format of the file is slower than float32 on this machine."""
    warn_if_slower(model_of(file), file.compute)


def settle(proposal: Proposal, recipe: ModelRecipe, pool: WorkerPool, look: Inspect) -> ModelRecipe:
    """Return the recipe of a job with the number format that a trial on random tokens comes to.

    Args:
        look: as for `WorkerPool.borrow`.

    Raises:
        FedprivError: the model can't be loaded or used.
    """
    dtype = settled_dtype(recipe, pool, look, exact=proposal.privacy.numerics == "strict")
    return replace(recipe, compute=computed_in(recipe.compute, dtype))
