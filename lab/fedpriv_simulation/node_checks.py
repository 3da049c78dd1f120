"""Check that every machine of a cluster has what the driver has, before anything is spent.

Nothing is sent to the machines. Model and records are found on each, in a folder that they share or
in copies at the same place. A copy that differs would make another run without a warning.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.data.transform import find_transform
from fedpriv.errors import ConfigError, FedprivError, RunError
from fedpriv.files import file_digest, private_folder, sha256, write_atomic
from fedpriv.models.stored import digest_of
from fedpriv.software import software
from fedpriv_server.run_directory import PRIVATE
from fedpriv_simulation.cluster import KEY, SAME_SOFTWARE, Cluster

SEEN, PAUSE = 20.0, 0.2  # seconds in which a file shows on another machine, and between two looks
READING = 3600.0  # seconds to start a process on a node, and to read a model and all records there
OUT, MODEL = "--out", "model.name"
FIXES = {
    OUT: "Put the run directory into a folder that all machines share under the same path, and in"
    " which the user who runs Ray may write.",
    MODEL: "Put the same files there under the same name, or into a shared folder.",
    "ledger": "Keep it in a folder that all machines share. Never copy a ledger.",
    "transform": "Install its package there.",
}
SAME_RECORDS = "Put the same records there under the same path, or into a shared folder."


def check_nodes(cluster: Cluster, config: JobConfig, run: Path) -> None:
    """Check that every node can be given sites of this run.

    Args:
        run: run directory.

    Raises:
        ConfigError: a node has other software, another base, other records, or no access to the run
            directory. The message names the node.
        UnreachableError: a node does not answer.
    """
    named = {f"sites.{site.name}.transform": site.transform for site in config.sites}
    transforms = {key: name for key, name in named.items() if name is not None}
    with _marker(run) as marker:
        asked = marker, config.model.name, _files(config), transforms
        here = look(*asked)
        for node, there in cluster.ask_each(look, *asked, within=READING):
            for what, mine in here.items():
                if (found := there.get(what)) != mine:
                    problem = f"node {node.name} has {what} {found or 'missing'} (here {mine})"
                    in_file = what in (OUT, MODEL) or what.startswith("sites.")
                    raise ConfigError(problem, key=what if in_file else KEY, fix=_fix(what))


def look(
    marker: Path, model: str, files: Mapping[str, Path], transforms: Mapping[str, str]
) -> dict[str, str | None]:
    """Return what this machine has: versions and digests, or in their place what is wrong.

    Args:
        marker: a file that the driver has just written into the run directory.
        model: the model as the federation file names it.
        files: files of the sites' records, and ledgers that outlive the run, by key.
        transforms: functions of the sites, by key.
    """
    packages = software()
    found = {name: one.version.partition("+")[0] for name, one in packages.items()}  # of any build
    return {
        **found,
        "source of fedpriv": packages["fedpriv"].digest,
        OUT: _seen(marker),
        MODEL: _or_why(digest_of, model),
        **{key: content_digest(path) for key, path in files.items()},
        **{key: _or_why(find_transform, name, key) for key, name in transforms.items()},
    }


def content_digest(path: Path) -> str | None:
    """Return the SHA-256 of a file, or of all names and contents in a folder.

    None if it is missing.
    """
    try:
        if not path.is_dir():
            return file_digest(path)
        inside = sorted(found for found in path.rglob("*") if found.is_file())
        listed = [(str(found.relative_to(path)), file_digest(found)) for found in inside]
    except OSError:
        return None
    return sha256(repr(listed).encode())


def _fix(what: str) -> str:
    last = what.rpartition(".")[2]
    usual = SAME_RECORDS if what.startswith("sites.") else SAME_SOFTWARE
    return FIXES.get(what, FIXES.get(last, usual))


def _or_why(how: Callable[..., object], *given: str) -> str:
    """Return the text that a function returns, or that there is something else, or its error."""
    try:
        found = how(*given)
    except (FedprivError, OSError) as error:
        return str(error)
    return found if isinstance(found, str) else "there"


@contextmanager
def _marker(run: Path) -> Iterator[Path]:
    """Make a file of new content in the run directory. Remove it at the end."""
    marker = private_folder(run / PRIVATE) / f"seen-{secrets.token_hex(8)}"
    try:
        write_atomic(marker, secrets.token_bytes(32))
        yield marker
    except OSError as error:
        raise RunError(f"{marker}: can't be written ({error.strerror}).") from None
    finally:
        marker.unlink(missing_ok=True)


def _seen(marker: Path) -> str:
    """Return the SHA-256 of a file of the driver's, if this machine may also write beside it.

    The file may take a moment to be seen.
    """
    until = time.monotonic() + SEEN
    while True:
        try:
            with tempfile.TemporaryFile(dir=marker.parent):
                return sha256(marker.read_bytes())
        except OSError as error:
            if time.monotonic() >= until:
                return f"can't be used: {error.strerror}"
        time.sleep(PAUSE)


def _files(config: JobConfig) -> dict[str, Path]:
    """Return the files that sites read where they compute, and ledgers, beside which they write."""
    records = {key: path for key, path in config.files().items() if key.startswith("sites.")}
    lasting = {f"sites.{site.name}.ledger": site.ledger for site in config.sites}
    return records | {key: path for key, path in lasting.items() if path is not None}
