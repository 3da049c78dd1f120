"""`[privacy] trust`: what a job that adds up under a secure sum can't have, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpriv.config.job import JobConfig


def usual_max_colluding(sites: int) -> int:
    """How many sites may collude where nobody says: one of up to four, of more a minority."""
    return 1 if sites <= 4 else (sites - 1) // 2


def check_trust(job: JobConfig) -> None:
    """Check that the settings of a secure sum fit the rest of a job, or that there are none.

    Raises:
        ValueError: they don't; names the key, and says why.
    """
    if job.privacy.trust == "secure-sum":
        _check_sum(job)
        _check_noise(job)
        return
    for key, absent in (("max_colluding", None), ("spare_slots", 0), ("roster", None)):
        if getattr(job.privacy, key) != absent:
            raise ValueError(f"privacy.{key}: belongs to trust = 'secure-sum'; leave it out")
    for index, site in enumerate(job.sites):
        if site.epsilon_alone is not None:
            raise ValueError(
                f"sites.{index}.epsilon_alone: belongs to trust = 'secure-sum'; with 'local' it is"
                " the same as epsilon"
            )


def _check_sum(job: JobConfig) -> None:
    """Who is in the sum."""
    privacy, count = job.privacy, len(job.sites)
    if count < 2:
        raise ValueError(
            "privacy.trust: 'secure-sum' adds up what several sites send, and there is one site;"
            " use 'local'"
        )
    if privacy.max_colluding is not None and privacy.max_colluding >= count:
        raise ValueError(
            f"privacy.max_colluding: {privacy.max_colluding} of {count} sites leaves nobody whom"
            " the sum would protect; name fewer"
        )
    if job.job.engine == "network" and privacy.roster is None:
        raise ValueError(
            "privacy.roster: is missing; over the network the sites of a secure sum know each"
            " other by the keys in it"
        )
    if job.job.engine != "network" and privacy.roster is not None:
        raise ValueError(
            "privacy.roster: is for engine 'network'; the sites of a simulation get their keys"
            " from it"
        )


def _check_noise(job: JobConfig) -> None:
    """Whatever uses one site's noise by itself has none to use: each adds a share only."""
    if job.job.sync > 1:
        raise ValueError(
            f"job.sync: with {job.job.sync} steps a site moves along its own noisy gradients, and"
            " a share of the noise is too little for that; with trust = 'secure-sum' use 1"
        )
    if job.denoise.where == "site":
        raise ValueError(
            "denoise.where: 'site' looks at a site's own noisy sum, and with trust ="
            " 'secure-sum' nobody may; use 'server'"
        )
    if job.job.wire != "float32":
        raise ValueError(
            f"job.wire: {job.job.wire!r} rounds what a site sends, and masks cancel only in what"
            " is sent exactly; with trust = 'secure-sum' use 'float32'"
        )
    if job.evaluation.sites is not None:
        raise ValueError(
            "evaluation.sites: a look is released by each site with noise of its own, at the noise"
            " multiplier of the plan, which with trust = 'secure-sum' is that of all sites"
            " together; look in a job of its own with trust = 'local'"
        )
