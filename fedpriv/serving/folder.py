"""A site model as a folder, which is refused unless it is as it was made.

Privacy
    Some of the adapters were trained on a site's own records without noise, so the folder is as
    confidential as the records. It is for its owner alone (law 16).
"""

from __future__ import annotations

import json
import platform
import warnings
from pathlib import Path

from pydantic import Field, ValidationError

from fedpriv.errors import ConfigError
from fedpriv.files import file_digest
from fedpriv.names import Digest
from fedpriv.section import Section

BASE, FACTS = "base", "site_model.json"
AGAIN = "Make the site model again: fedpriv-client personalise."


class SiteModelFacts(Section):
    """The content of `site_model.json`.

    Attributes:
        site, job: the site that owns it, and the job of its adapter.
        place: machine and folder where it was made.
        files: path → digest of each file.
    """

    site: str
    job: str
    place: str
    files: dict[str, Digest] = Field(min_length=1)


def site_models(state_dir: Path) -> Path:
    """Return the folder of the site models, with one for each job."""
    return state_dir / "site-model"


def newest_site_model(state_dir: Path) -> Path:
    """Find the site model that was made last.

    Args:
        state_dir: state folder of the site.

    Raises:
        ConfigError: there is no site model.
    """
    found = site_models(state_dir).glob(f"[!.]*/{FACTS}")
    newest = max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        fix = "Make one: fedpriv-client personalise. Or name a folder."
        raise ConfigError("no site model was made yet", file=site_models(state_dir), fix=fix)
    return newest.parent


def read_site_model(folder: Path) -> SiteModelFacts:
    """Read the facts of a site model.

    Raises:
        ConfigError: there is none, or it can't be read.
    """
    path = folder / FACTS
    try:
        return SiteModelFacts.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        problem = f"holds no site model: {FACTS} is missing"
        fix = "Name the folder that fedpriv-client personalise made."
        raise ConfigError(problem, file=folder, fix=fix) from None
    except (OSError, ValidationError) as error:
        raise ConfigError(f"can't be read ({error})", file=path, fix=AGAIN) from None


def check_folder(folder: Path) -> SiteModelFacts:
    """Check that a site model is as it was made. Warn if it was copied or others may read it.

    Raises:
        ConfigError: there is no site model; or a file was changed, is missing, or was added later.
    """
    facts = read_site_model(folder)
    found = digests(folder)
    for name in sorted(found.keys() | facts.files.keys()):
        if found.get(name) != facts.files.get(name):
            how, fix = "was changed" if name in found else "is missing", AGAIN
            if name not in facts.files:
                how, fix = "was put there later", "Take it away."
            raise ConfigError(f"{how}: it is not as it was made", file=folder / name, fix=fix)
    if facts.place != place_of(folder):
        warnings.warn(
            f"{folder}: made of the records of {facts.site} at {facts.place}, and copied here."
            " It is as confidential as these records: not to leave this house.",
            stacklevel=3,
        )
    if folder.stat().st_mode & 0o077:
        warnings.warn(f"{folder}: others may read it. Type: chmod 700 {folder}", stacklevel=3)
    return facts


def place_of(folder: Path) -> str:
    """Name this machine and the folder."""
    return f"{platform.node()}:{folder.resolve()}"


def digests(folder: Path) -> dict[str, str]:
    """Digest each file of a folder, except the facts and hidden files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise ConfigError("is a link, and a site model has no links", file=path, fix=AGAIN)
        if path.is_file() and not path.name.startswith(".") and name != FACTS:
            found[name] = file_digest(path)
    return found


def read_weights(folder: Path) -> dict[str, float]:
    """Read the weight of each adapter of a site model.

    Raises:
        ConfigError: the folder holds no site model, or a file in it was changed.
    """
    check_folder(folder)
    weights: dict[str, float] = json.loads((folder / "config.json").read_text())["weights"]
    return weights
