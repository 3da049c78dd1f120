"""The number format that a site with `compute.dtype = "auto"` chose, kept for each job.

Privacy
    It was found on random tokens. A site answers in the same way whether or not it could be kept.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace

from fedpriv.config.site_file import SiteFile
from fedpriv.models.config import ModelSection
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.number_format import SETTLED, settled_dtype, warn_if_slower
from fedpriv.private_training.pool import Inspect, WorkerPool
from fedpriv.private_training.worker import ModelRecipe, computed_in
from fedpriv.protocol import Proposal
from fedpriv_client.disk_space import FORMATS
from fedpriv_client.held_space import HeldSpace, write_beside
from fedpriv_client.site_settings import SiteSettings

log = logging.getLogger(__name__)
MOST = 100  # jobs; the oldest are forgotten


def model_of(file: SiteFile) -> ModelSection:
    """Return the model that a site allows, as far as its own file describes it."""
    name, labels = file.allow.model, file.data.labels
    if labels:
        return ModelSection(name=name, task="classification", labels=labels)
    return ModelSection(name=name)


def warn(file: SiteFile) -> None:
    """Log a warning if the number format of the file is slower than float32 on this machine."""
    warn_if_slower(model_of(file), file.compute)


def settle(
    settings: SiteSettings,
    proposal: Proposal,
    recipe: ModelRecipe,
    pool: WorkerPool,
    look: Inspect,
    held: HeldSpace | None = None,
) -> ModelRecipe:
    """Return the recipe of a job with its number format, which stays the same for the job's life.

    In a simulation one trial settles the format for all sites, so ``auto`` is float32 by now.

    Args:
        look: as for `WorkerPool.borrow`.
        held: disk space, as for `write_beside`.

    Raises:
        FedprivError: ``auto`` is tried, and the model can't be loaded or used.
    """
    job, known = proposal.job_id, _known(settings)
    if settings.compute.dtype != "auto" or settings.terms.simulated or job in known:
        return recipe
    dtype = settled_dtype(recipe, pool, look, exact=proposal.privacy.numerics == "strict")
    path = settings.state_dir / FORMATS
    try:
        newest = dict([*known.items(), (job, dtype)][-MOST:])
        write_beside(path, json.dumps(newest, indent=2) + "\n", held=held)
    except OSError as error:
        log.error("%s: not written: %s.", path, error.strerror)
    return replace(recipe, compute=computed_in(recipe.compute, dtype))


def compute_of(settings: SiteSettings, job: str) -> ComputeSection:
    """Return the compute settings of a job at an ``auto`` site; float32 until that is settled."""
    return computed_in(settings.compute, _known(settings).get(job, "float32"))


def _known(settings: SiteSettings) -> dict[str, str]:
    """Return the number formats by job; none if the file can't be read."""
    try:
        found = json.loads((settings.state_dir / FORMATS).read_text(encoding="utf-8"))
        return {str(job): dtype for job, dtype in found.items() if dtype in SETTLED}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}
