"""Public facts of a federation, its noise, and how both would change with other settings.

Privacy:
    Uses the federation file alone. A size is what a person declared, never counted from records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from fedpriv.config.job import JobConfig
from fedpriv.config.looks import held_out_units
from fedpriv.config.sites import SiteSection
from fedpriv.config.trust import usual_max_colluding
from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.accounting.shares import alone, shares_of
from fedpriv.privacy.usual import MAX_MEMBERS
from fedpriv_forecasting.setting import Setting, noise_to_signal

UNEVEN = 4.0  # ratio of the largest site to the smallest; measured federations have equal sites
_noise = lru_cache(maxsize=256)(calibrate_noise)


@dataclass(frozen=True)
class Federation:
    """Hold what is public about a federation and decides its noise.

    Attributes:
        sizes: units of each site to train on, as declared.
        epsilons: ε of each site, the smaller of the job's ε and its own cap.
        rounds: private steps that train.
        slots: all steps that the noise is paid for, with spare ones and those of looks.
        secure_sum: whether the sites share the noise.
        stated_colluding: how many sites of a secure sum may collude, where the file says it.
        records_per_unit: the most records of a unit, where a unit is a patient.
    """

    sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    delta: float
    sample_rate: float
    rounds: int
    slots: int
    secure_sum: bool = False
    stated_colluding: int | None = None
    records_per_unit: int = 1

    @property
    def uneven(self) -> bool:
        """Tell whether the largest site has more than `UNEVEN` times the units of the smallest."""
        return max(self.sizes) > UNEVEN * min(self.sizes)

    @property
    def sites(self) -> int:
        """Return the number of sites."""
        return len(self.sizes)

    @property
    def records(self) -> float:
        """Return the units of a typical site: the geometric mean."""
        return math.exp(sum(map(math.log, self.sizes)) / self.sites)

    @property
    def max_colluding(self) -> int | None:
        """Return how many sites of a secure sum may collude. None without a secure sum."""
        if not self.secure_sum:
            return None
        stated = self.stated_colluding
        return usual_max_colluding(self.sites) if stated is None else stated

    @cached_property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Return σ of each site's claim.

        In a secure sum it is that of the sum of a set's shares.
        """
        return tuple(
            _noise(epsilon, self.delta, self.sample_rate, self.slots) for epsilon in self.epsilons
        )

    @cached_property
    def epsilon_alone(self) -> float | None:
        """Return ε if all other sites of a secure sum work with the server.

        None where it is not finite.
        """
        if self.max_colluding is None:
            return max(self.epsilons)
        event = Event(self.sample_rate, self.noise_multipliers[0], self.slots)
        found = alone(event, self.delta, self.sites, self.max_colluding).epsilon
        return found if math.isfinite(found) else None

    @cached_property
    def noise(self) -> float:
        """Return the noise to signal of the whole job, as in `noise_to_signal`.

        Sites that add noise by themselves are weighed by a_i = 1 / σ_i², as the server does. The
        noise of Σ a_i S_i over Σ a_i q n_i is then √(Σ a_i) / Σ a_i q n_i. Sites of a secure sum
        add σ / √k each, where k is the number of shares that are surely honest.
        """
        sigmas = self.noise_multipliers
        if self.max_colluding is not None:
            of_sum = sigmas[0] * math.sqrt(self.sites / shares_of(self.sites, self.max_colluding))
            return noise_to_signal(of_sum, self.sample_rate * sum(self.sizes), self.rounds)
        weights = [1 / sigma**2 for sigma in sigmas]
        weighed = sum(a * size for a, size in zip(weights, self.sizes, strict=True))
        return noise_to_signal(math.sqrt(sum(weights)), self.sample_rate * weighed, self.rounds)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Return the federation's setting, and those of its smallest and largest site if uneven."""
        sizes = (min(self.sizes), max(self.sizes)) if self.uneven else ()
        return (self.setting, *(replace(self.setting, records=size) for size in sizes))

    @property
    def setting(self) -> Setting:
        """Return where the federation is on the curve: its mean is at the sites' geometric mean."""
        return Setting(self.sites, self.records, self.noise)


def federation_of(job: JobConfig, sizes: Sequence[str] = ()) -> Federation:
    """Read the public facts of a federation file.

    Args:
        sizes: sizes of sites for which the file states none, as in a file for the network. A text
            such as ``250`` is for every such site, and ``surgery=250`` for one.

    Raises:
        ConfigError: there is only one site; the job begins at public records; a site has no size,
            or grants less than a secure sum asks of all; or a given size is not a size, is for no
            site, or is for a site with a size in the file.
    """
    privacy, made_up = job.privacy, job.synthetic
    if len(job.sites) < 2:
        problem = "has a single site, which can join nobody"
        raise ConfigError(problem, key="sites", fix="Name all sites.")
    if made_up is not None and made_up.warm_start > 0:
        key, value = "synthetic.warm_start", made_up.warm_start
        problem = "begins at public records, and too few such federations were measured for a"
        fix = f"Forecast it without them, with --set {key}=0."
        raise ConfigError(f"{problem} forecast", key=key, value=value, fix=fix)
    stated = _stated(sizes, job)
    return Federation(
        sizes=tuple(_trained_on(site, stated) for site in job.sites),
        epsilons=tuple(_granted(site, job) for site in job.sites),
        delta=privacy.delta,
        sample_rate=privacy.sample_rate,
        rounds=job.steps,
        slots=job.slots,
        secure_sum=privacy.trust == "secure-sum",
        stated_colluding=privacy.max_colluding,
        records_per_unit=1 if privacy.unit == "record" else privacy.max_records_per_unit,
    )


def _stated(sizes: Sequence[str], job: JobConfig) -> dict[str, int]:
    """Return the stated sizes by the site's name. The empty name is for every other site."""
    found = {}
    names = {site.name for site in job.sites} | {""}
    known = {site.name for site in job.sites if site.size is not None}
    for text in sizes:
        name, _, size = text.rpartition("=")
        if name in known or (not name and len(known) == len(job.sites)):
            changed = f"sites.{name or job.sites[0].name}.size=250"
            problem = f"the file has a size for {name or 'every site'}"
            fix = f"Change it in the file, or for this time with --set {changed}."
            raise ConfigError(problem, key="--size", value=text, fix=fix)
        if name not in names or not re.fullmatch("[1-9][0-9]{0,9}", size):
            problem = "expected a number of units, or NAME=UNITS with the name of a site"
            fix = f"Such as --size 250 or --size {job.sites[0].name}=250."
            raise ConfigError(problem, key="--size", value=text, fix=fix)
        found[name] = int(size)
        if job.privacy.delta >= 1 / found[name]:
            problem = f"is not below 1 / {found[name]}, the size of a site"
            fix = "Make it smaller."
            raise ConfigError(problem, key="privacy.delta", value=job.privacy.delta, fix=fix)
    return found


def _trained_on(site: SiteSection, stated: Mapping[str, int]) -> int:
    declared = stated.get(site.name, stated.get("")) if site.size is None else site.size
    if declared is None:
        problem = "is not known, and what a site gains depends on how many units it has"
        fix = f"Give it as --size {site.name}=250, or one for all sites as --size 250."
        raise ConfigError(problem, key=f"sites.{site.name}.size", fix=fix)
    if not isinstance(site.held_out, float):  # a file holds further records
        return declared
    return max(1, declared - (held_out_units(site.held_out, declared, None) or 0))


def _granted(site: SiteSection, job: JobConfig) -> float:
    proposed, cap = job.privacy.epsilon, site.epsilon
    if cap is not None and cap < proposed and job.privacy.trust == "secure-sum":
        why = "a secure sum has one noise for all sites, so this one would refuse"
        problem = f"is less than the job's {proposed:g}, and {why}"
        fix = "Make privacy.epsilon smaller, or leave the site out."
        raise ConfigError(problem, key=f"sites.{site.name}.epsilon", value=cap, fix=fix)
    return site.granted(proposed)


def changes(now: Federation) -> Iterator[tuple[str, Federation]]:
    """Give each possible change by itself, with words for it."""
    for times, words in ((2, "twice the sites"), (4, "four times the sites")):
        if not now.secure_sum or times * now.sites <= MAX_MEMBERS:
            yield words, replace(now, sizes=now.sizes * times, epsilons=now.epsilons * times)
    yield "twice the records at each site", replace(now, sizes=tuple(2 * n for n in now.sizes))
    yield "twice the ε", replace(now, epsilons=tuple(2 * epsilon for epsilon in now.epsilons))
    yield from _other_trust(now)
    if 2 * now.sample_rate <= 1:
        yield "twice the sample rate", replace(now, sample_rate=2 * now.sample_rate)
    yield "half the sample rate", replace(now, sample_rate=now.sample_rate / 2)
    more = now.slots + now.rounds
    yield "twice the rounds", replace(now, rounds=2 * now.rounds, slots=more)


def _other_trust(now: Federation) -> Iterator[tuple[str, Federation]]:
    if now.max_colluding is not None:
        yield "each site adds all of its noise", replace(now, secure_sum=False)
        twice = 2 * max(1, now.max_colluding)
        if twice < now.sites:
            words = f"{twice} sites may collude, for {now.max_colluding}"
            yield words, replace(now, stated_colluding=twice)
    elif 2 <= now.sites <= MAX_MEMBERS and len(set(now.epsilons)) == 1:
        few = replace(now, secure_sum=True, stated_colluding=1)
        yield "a secure sum, of which one site may collude", few
        usual = usual_max_colluding(now.sites)
        if usual > 1:
            words = f"a secure sum, of which {usual} may collude"
            yield words, replace(few, stated_colluding=usual)
