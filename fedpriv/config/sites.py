"""`[[sites]]` of a federation file, and the checks of all sites together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fedpriv.config.ehr import EhrSources
from fedpriv.config.looks import (
    LooksSection,
    check_delta_below,
    check_held_out,
    held_out_units,
)
from fedpriv.config.sources import Source
from fedpriv.names import Name
from fedpriv.privacy import usual


class SiteRecords(EhrSources):
    """A site's name, and the place of its records."""

    table: ClassVar[str]

    name: Name = Field(description="The site's name.")
    data: Path | str | None = Field(
        None,
        description="File, saved dataset folder, or owner/name at a hub. A simulation needs"
        " this, `[sites.omop]` or `[sites.fhir]`.",
    )

    @property
    def records(self) -> Source | None:
        """Return where the records are; None over the network."""
        return self.source(self.data)

    def files(self) -> dict[str, Path]:
        """Return its files and folders of records, by key, without data sets at a hub."""
        omop, fhir = self.omop and self.omop.file, self.fhir and self.fhir.file
        found = {"data": self.data, "omop": omop, "fhir": fhir, "held_out": self.held_out}
        named = f"{self.table}.{self.name}"
        return {f"{named}.{key}": path for key, path in found.items() if isinstance(path, Path)}


class SiteSection(SiteRecords):
    """A site. A simulation names its data here; over the network it has only a name."""

    table: ClassVar[str] = "sites"

    size: int | None = Field(
        None,
        ge=1,
        le=usual.MAX_UNITS,
        description="Declared number of units, stated by a person, never counted from the"
        " records. A simulation needs it.",
    )
    epsilon: float | None = Field(
        None, gt=0, description="Highest ε of this job for the site's people."
    )
    epsilon_alone: float | None = Field(
        None,
        gt=0,
        description="The same if every other site in the secure sum works with the server."
        " Without it, whatever the job costs then.",
    )
    ledger: Path | None = Field(
        None,
        description="Lasting ledger, made by fedpriv ledger init. Without it, the run makes its"
        " own.",
    )
    witness: Path | None = Field(
        None, description="File on another disk that records every ledger row."
    )

    def granted(self, epsilon: float) -> float:
        """Return what the site grants of a job's ε: all of it, or its own smaller ε."""
        return epsilon if self.epsilon is None else min(self.epsilon, epsilon)


class OutsideSection(SiteRecords):
    """A site that takes no part in a simulation, such as a hospital that comes later.

    Its records train nothing. They test the federation's adapter: those of `held_out`, or all.
    `fedpriv compare` also begins a new site there.
    """

    table: ClassVar[str] = "outside"
    held_out_size: ClassVar[None] = None  # type: ignore[misc]  # no key: nothing is divided by it


Sites = Sequence[SiteSection]


def check_names(sites: Sites, min_sites: int) -> None:
    """Check that sites have different names, and that there are as many as a round needs.

    Raises:
        ValueError: names the key.
    """
    names = [site.name for site in sites]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"sites: two sites have the same name, {twice[0]!r}")
    if min_sites > len(names):
        raise ValueError(f"job.min_sites: {min_sites} is more than the {len(names)} sites")


def check_outside(outside: Sequence[OutsideSection], sites: Sites, *, network: bool) -> None:
    """Check that no outside site takes part, and that each has records.

    Raises:
        ValueError: names the key.
    """
    names = [site.name for site in sites]
    for index, site in enumerate(outside):
        key = f"outside.{index}"
        if network:
            raise ValueError(
                f"{key}: belongs to a simulation; over the network a site that takes no part is not"
                " named: it takes the exported adapter, and tests it by itself"
            )
        if site.name in names:
            raise ValueError(
                f"{key}.name: another site is called {site.name!r}; an outside site takes no part,"
                " and has a name of its own"
            )
        site.check_one(site.data, key, "data")
        names.append(site.name)


def check_looks(
    sites: Sites, looks: LooksSection | None, *, rounds: int, network: bool, delta: float
) -> None:
    """Check that each look has a round of its own and, in a simulation, records at each site.

    Raises:
        ValueError: names the key.
    """
    for index, site in enumerate(sites):
        key = f"sites.{index}"
        check_held_out(site.held_out, site.size, site.held_out_size, delta, key)
    if looks is None:
        return
    if looks.looks > rounds:
        need = f"{looks.looks} looks need as many rounds, and there are {rounds}"
        raise ValueError(f"evaluation.sites.looks: {need}")
    for index, site in enumerate(() if network else sites):
        key = f"sites.{index}.held_out"
        if site.held_out is None:
            raise ValueError(f"{key}: is missing; evaluation.sites looks at such records")
        if held_out_units(site.held_out, site.size or 1, site.held_out_size) is None:
            raise ValueError(f"{key}_size: is missing; evaluation.sites divides by it")


def check_described(sites: Sites, *, network: bool) -> None:
    """Check that a simulation's file names the sites' data, and a network's file names none.

    Raises:
        ValueError: names the key.
    """
    for index, site in enumerate(sites):
        if network:
            for key in site.model_fields_set - {"name"}:
                raise ValueError(
                    f"sites.{index}.{key}: belongs to the site's own file when engine is"
                    " 'network'; here a site is only named"
                )
            continue
        site.check_one(site.data, f"sites.{index}", "data")
        if site.size is None:
            raise ValueError(f"sites.{index}.size: is missing; a simulation needs it")


def check_delta(sites: Sites, delta: float) -> None:
    """Check that no site is so large that δ would allow publishing a whole unit.

    Raises:
        ValueError: one is.
    """
    for site in sites:
        if site.size is not None:
            check_delta_below(site.size, f"size of site {site.name!r}", delta, "privacy.delta:")
