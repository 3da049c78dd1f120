"""Which code runs: digests of our own source, and of each installed package that it needs."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from fedpriv import __version__
from fedpriv.distribution import needed
from fedpriv.files import canonical_json, sha256
from fedpriv.section import Section

OURS = (
    *("fedpriv", "fedpriv_audit", "fedpriv_client", "fedpriv_comparison", "fedpriv_forecasting"),
    *("fedpriv_server", "fedpriv_simulation", "fedpriv_strategies"),
)
# Digests of all our files, in a distribution that holds only some (scripts/hatch_build.py).
SOURCE = Path(__file__).with_name("source.json")


class Installed(Section):
    """Hold a package's version, and SHA-256 of the list of its files with their digests."""

    version: str
    digest: str | None


@cache
def software() -> dict[str, Installed]:
    """Return the code of this process: fedpriv and the packages that it requires, by name.

    What those require in turn is not included. The digest of another package is that of its RECORD,
    the list that was made when its wheel was built and that installers keep. So it says which wheel
    was installed, not whether somebody edited its files since. The digest of fedpriv is that of its
    own files. Files that a distribution leaves out count as they were when it was built, so all
    distributions of one source have the same digest.
    """
    whole = json.loads(SOURCE.read_text(encoding="utf-8")) if SOURCE.exists() else {}
    ours = {name: whole.get(name, {}) | _digests(name) for name in OURS}
    found = {"fedpriv": Installed(version=__version__, digest=sha256(canonical_json(ours)))}
    for name in sorted({requirement.name for requirement in needed()}):
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        found[name] = Installed(version=package.version, digest=_record_digest(package))
    return found


def _digests(package: str) -> dict[str, str]:
    """Return SHA-256 of each file of one of our packages; none if it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return {}
    root = Path(spec.origin).parent
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if "__pycache__" not in path.parts and path != SOURCE
    }


def _record_digest(package: Distribution) -> str | None:
    """Return the digest of the wheel's files in its RECORD, without those of an installer."""
    listed = sorted(
        (str(file), file.hash.value)
        for file in package.files or ()
        if file.hash is not None
        and not str(file).startswith("..")
        and "__pycache__" not in file.parts
        and file.name not in ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")
    )
    return sha256(canonical_json(listed)) if listed else None
