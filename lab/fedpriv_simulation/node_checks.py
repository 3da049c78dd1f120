"""Check that every machine of a cluster has what the driver has, before anything is spent.

Nothing is sent to the machines. Model and records are found on each, in a folder that they share or
in copies at the same place. A copy that differs would make another run without a warning.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError, FedprivError, RunError
from fedpriv.files import file_digest, private_folder, sha256, write_atomic
from fedpriv_server.run_directory import PRIVATE
from fedpriv_simulation.cluster import KEY, Cluster, Node

SEEN = 20.0  # seconds in which a shared folder shows on one machine what another wrote
ANSWER, PAUSE = 300.0, 0.2  # seconds to start a process on a node, and between two looks
READING = 3600.0  # seconds to read a model and all records there
SAME_SOFTWARE = "Install the same there, and start its Ray from that environment."
PACKAGES = ("ray", "torch", "transformers", "peft", "flwr", "numpy")


@dataclass(frozen=True)
class Wanted:
    """Name what a node is asked to look for.

    Attributes:
        marker: a file that the driver has just written into the run directory.
        model: the model as the federation file names it.
        files: files of the sites' records, and ledgers that outlive the run, by key.
        transforms: functions of the sites, by key.
    """

    marker: Path
    model: str
    files: Mapping[str, Path]
    transforms: Mapping[str, str]


@dataclass(frozen=True)
class Found:
    """Hold what a node has, or why it has not.

    Attributes:
        marker: SHA-256 of the marker, or None if it did not appear.
        answer: the name of a file that the node has written beside the marker, with what it read;
            or why it could not.
        ours: digest of fedpriv's own source.
        base: digest of the base model, or what is wrong with it.
        files: SHA-256 of each file, or of all files of a folder; None where there is none.
        transforms: what is wrong with each function. Functions that are found are left out.
    """

    marker: str | None
    answer: str
    ours: str | None
    base: str
    files: Mapping[str, str | None]
    transforms: Mapping[str, str] = field(default_factory=dict)


def check_nodes(cluster: Cluster, config: JobConfig, run: Path, base: str) -> None:
    """Check that every node can be given sites of this run.

    Args:
        run: run directory.
        base: digest of the base model as the driver has it.

    Raises:
        ConfigError: a node has other software, another base, other records, or no access to the run
            directory. The message names the node.
        UnreachableError: a node does not answer.
    """
    check_versions(cluster)
    with _marker(run) as marker:
        named = {f"sites.{site.name}.transform": site.transform for site in config.sites}
        transforms = {key: name for key, name in named.items() if name is not None}
        wanted = Wanted(marker, config.model.name, _files(config), transforms)
        mine = Found(
            marker=sha256(marker.read_bytes()),
            answer="",
            ours=_source(),
            base=base,
            files={key: content_digest(path) for key, path in wanted.files.items()},
        )
        for node, found in cluster.ask_each(look, wanted, within=READING):
            _compare(node, wanted, mine, found)


def check_versions(cluster: Cluster) -> None:
    """Check that every node has this fedpriv, and the driver's versions of what it needs.

    Raises:
        ConfigError: a node has other versions.
        UnreachableError: a node does not answer.
    """

    def versions(packages: tuple[str, ...]) -> dict[str, str]:  # sent whole: needs no fedpriv there
        import platform
        from importlib.metadata import PackageNotFoundError, version

        found = {"python": platform.python_version()}
        try:
            import fedpriv

            found["fedpriv"] = fedpriv.__version__
        except Exception as error:
            found["fedpriv"] = f"none ({type(error).__name__})"
        for package in packages:
            try:
                found[package] = version(package).partition("+")[0]  # of any build
            except PackageNotFoundError:
                found[package] = "none"
        return found

    mine = versions(PACKAGES)
    for node, found in cluster.ask_each(versions, PACKAGES, within=ANSWER):
        other = [name for name in mine if found[name] != mine[name]]
        if other:
            told = ", ".join(f"{name} {found[name]} (here {mine[name]})" for name in other)
            what = f"node {node.name} has other versions: {told}"
            raise ConfigError(what, key=KEY, fix=SAME_SOFTWARE)


def look(wanted: Wanted) -> Found:
    """Look for all that is wanted, on the machine that this is called on."""
    from fedpriv.data.transform import find_transform
    from fedpriv.models.stored import digest_of

    marker = _appeared(wanted.marker)
    answer = f"{wanted.marker.name}-{secrets.token_hex(4)}"
    try:
        if marker is not None:
            write_atomic(wanted.marker.with_name(answer), marker)
    except OSError as error:
        answer = error.strerror or type(error).__name__
    try:
        base = digest_of(wanted.model)
    except (FedprivError, OSError) as error:
        base = str(error)
    missing = {}
    for key, name in wanted.transforms.items():
        try:
            find_transform(name, key)
        except FedprivError as error:
            missing[key] = str(error)
    return Found(
        marker=marker,
        answer=answer,
        ours=_source(),
        base=base,
        files={key: content_digest(path) for key, path in wanted.files.items()},
        transforms=missing,
    )


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


def _compare(node: Node, wanted: Wanted, mine: Found, found: Found) -> None:
    folder, fix = wanted.marker.parent.parent, SAME_SOFTWARE
    other = (key for key, digest in mine.files.items() if found.files[key] != digest)
    if found.marker != mine.marker:
        key, what = "--out", f"does not see what is written into {folder}"
        fix = "Put the run directory into a folder that all machines share under the same path."
    elif _appeared(wanted.marker.with_name(found.answer)) is None:
        key, what = "--out", f"can't write into {folder} as the driver sees it ({found.answer})"
        fix = "Mount the folder there so that the user who runs Ray can write to it."
    elif found.ours != mine.ours:
        key, what = KEY, "has another source of the same version of fedpriv"
    elif found.base != mine.base:
        key, what = "model.name", f"has another base model than {mine.base}: {found.base}"
        fix = "Put the same files there under the same name, or into a shared folder."
    elif first := next(other, None):
        how = "is missing" if found.files[first] is None else "is not the same"
        key, what = first, f"{wanted.files[first]} {how} there"
        fix = "Put the same records there under the same path, or into a shared folder."
        if key.endswith(".ledger"):
            fix = "Keep it in a folder that all machines share. Never copy a ledger."
    elif found.transforms:
        key, what = next(iter(found.transforms.items()))
        fix = "Install its package there."
    else:
        return
    raise ConfigError(f"node {node.name} {what}", key=key, fix=fix)


@contextmanager
def _marker(run: Path) -> Iterator[Path]:
    """Make a file of new content in the run directory.

    Remove it and the answers to it at the end.
    """
    marker = private_folder(run / PRIVATE) / f"seen-{secrets.token_hex(8)}"
    try:
        write_atomic(marker, secrets.token_bytes(32))
        yield marker
    except OSError as error:
        raise RunError(f"{marker}: can't be written ({error.strerror}).") from None
    finally:
        for path in marker.parent.glob(f"{marker.name}*"):
            path.unlink(missing_ok=True)


def _appeared(path: Path) -> str | None:
    """Return the SHA-256 of a file that another machine wrote. It may take a moment to be seen."""
    until = time.monotonic() + SEEN
    while True:
        try:
            return sha256(path.read_bytes())
        except OSError:
            if time.monotonic() >= until:
                return None
        time.sleep(PAUSE)


def _files(config: JobConfig) -> dict[str, Path]:
    """Return the files that sites read where they compute, and ledgers, beside which they write."""
    records = {key: path for key, path in config.files().items() if key.startswith("sites.")}
    lasting = {f"sites.{site.name}.ledger": site.ledger for site in config.sites}
    return records | {key: path for key, path in lasting.items() if path is not None}


def _source() -> str | None:
    from fedpriv.software import software

    return software()["fedpriv"].digest
