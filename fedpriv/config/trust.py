"""`[privacy] trust`: what a job with a secure sum can't have, and why."""

from __future__ import annotations

from fedpriv.config.run import JobSection
from fedpriv.config.sites import Sites
from fedpriv.privacy.config import PrivacySection


def usual_max_colluding(sites: int) -> int:
    """Return how many sites may collude by default: one of up to four; a minority of more."""
    return 1 if sites <= 4 else (sites - 1) // 2


def check_trust(
    privacy: PrivacySection, job: JobSection, sites: Sites, *, denoise: str, looks: bool
) -> None:
    """Check that a secure sum has several sites, and that the job needs no more than the sum.

    Args:
        denoise, looks: as for `check_shared_noise`.

    Raises:
        ValueError: names the key, and says why.
    """
    if privacy.trust == "secure-sum":
        if len(sites) < 2:
            adds = "adds up what several sites send, and there is one site"
            raise ValueError(f"privacy.trust: 'secure-sum' {adds}; use 'local'")
        if privacy.max_colluding is not None and privacy.max_colluding >= len(sites):
            raise ValueError(
                f"privacy.max_colluding: {privacy.max_colluding} of {len(sites)} sites leaves"
                " nobody whom the sum would protect; name fewer"
            )
        if job.engine == "network" and privacy.roster is None:
            raise ValueError(
                "privacy.roster: is missing; over the network the sites of a secure sum know each"
                " other by the keys in it"
            )
        if job.engine != "network" and privacy.roster is not None:
            raise ValueError(
                "privacy.roster: is for engine 'network'; the sites of a simulation get their keys"
                " from it"
            )
        check_shared_noise(sync=job.sync, denoise=denoise, wire=job.wire, looks=looks)
        return
    for key, absent in (("max_colluding", None), ("spare_slots", 0), ("roster", None)):
        if getattr(privacy, key) != absent:
            raise ValueError(f"privacy.{key}: belongs to trust = 'secure-sum'; leave it out")
    for index, site in enumerate(sites):
        if site.epsilon_alone is not None:
            local = "with 'local' it is the same as epsilon"
            key = f"sites.{index}.epsilon_alone"
            raise ValueError(f"{key}: belongs to trust = 'secure-sum'; {local}")


def check_shared_noise(*, sync: int, denoise: str, wire: str, looks: bool) -> None:
    """Check that nothing in a job uses one site's noise by itself, because it is only a share.

    Args:
        sync, denoise, wire: as in the job.
        looks: whether it looks at the sites' held-out records.

    Raises:
        ValueError: something does; names the key, and says why.
    """
    if sync > 1:
        raise ValueError(
            f"job.sync: with {sync} steps a site moves along its own noisy gradients, and"
            " a share of the noise is too little for that; with trust = 'secure-sum' use 1"
        )
    if denoise == "site":
        raise ValueError(
            "denoise.where: 'site' looks at a site's own noisy sum, and with trust ="
            " 'secure-sum' nobody may; use 'server'"
        )
    if wire != "float32":
        raise ValueError(
            f"job.wire: {wire!r} rounds what a site sends, and masks cancel only in what"
            " is sent exactly; with trust = 'secure-sum' use 'float32'"
        )
    if looks:
        raise ValueError(
            "evaluation.sites: each site releases a look with its own noise, but with trust ="
            " 'secure-sum' the plan's noise multiplier is that of all sites together; look in a"
            " separate job with trust = 'local'"
        )
