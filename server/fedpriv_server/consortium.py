"""What a coordinator needs to know: where it listens, and which sites there are."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from fedpriv.config.job import JobConfig
from fedpriv.config.load import absolute, config_error, read_toml
from fedpriv.config.server import ServerSection
from fedpriv.config.sites import Sites, SiteSection
from fedpriv.errors import ConfigError
from fedpriv.section import Section
from fedpriv.secure_sum.roster import Roster, read


class Consortium(Section):
    """`[server]` and `[[sites]]` of a federation file. The rest of the file describes a job."""

    model_config = ConfigDict(extra="ignore")

    server: ServerSection
    sites: tuple[SiteSection, ...] = Field(min_length=1)

    @property
    def names(self) -> set[str]:
        return {site.name for site in self.sites}


def load_consortium(path: Path) -> Consortium:
    """Read a file with `[server]` and `[[sites]]`.

    Raises:
        ConfigError: names the file, the key, the value and what to do.
    """
    try:
        found = Consortium.model_validate(read_toml(path))
    except ValidationError as error:
        raise config_error(error, path, Consortium) from None
    return Consortium.model_validate(absolute(found, path.resolve().parent))


def server_of(config: JobConfig, source: Path) -> ServerSection:
    """Return where sites find the server of a job.

    Raises:
        ConfigError: the job is not for the network.
    """
    if config.job.engine != "network" or config.server is None:
        raise ConfigError(
            "is not for the network",
            file=source,
            key="job.engine",
            value=config.job.engine,
            fix='Set engine = "network" and add a [server] table, or run fedpriv simulate.',
        )
    return config.server


def roster_of(path: Path | None, sites: Sites) -> Roster | None:
    """Read the roster of a secure sum. It has to name exactly the sites of the federation file.

    Args:
        path: the path in the federation file; None in a job without a secure sum.

    Raises:
        ConfigError: the roster can't be read, or names other sites.
    """
    if path is None:
        return None
    roster = read(path)
    named, listed = {site.name for site in sites}, {e.name for e in roster.entries}
    if named != listed:
        raise ConfigError(
            f"differs from the federation file in the sites {', '.join(sorted(named ^ listed))}",
            file=path,
            key="privacy.roster",
            fix="Make a roster of the sites of this federation: fedpriv roster make.",
        )
    return roster
