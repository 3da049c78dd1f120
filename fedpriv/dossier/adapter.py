"""Which adapter a dossier is about: digests of its files that are the same on any machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from fedpriv.adapter_facts import AdapterFacts
from fedpriv.base_model import CONFIG, FACTS
from fedpriv.dossier.facts import Facts
from fedpriv.dossier.findings import Finding, holds, left_open, word
from fedpriv.errors import ConfigError, OtherAdapterError
from fedpriv.files import canonical_json, file_digest, sha256

CARD = "README.md"  # for people; everybody may write another
BASE = "base_model_name_or_path"  # where a machine has the base; its digest says which one it is
NOTES = ("held_out", "trained")  # a site's notes for itself; the coordinator's file has none


def adapter_digests(folder: Path) -> dict[str, str]:
    """Return file name → digest, for each file of an adapter except its card.

    The digest of peft's settings is of their JSON without the place of the base model, and with
    lists of names sorted: peft writes sets of names, in an order that differs between processes.
    The digest of the facts is of the coordinator's form of the file, without a site's own notes.

    Raises:
        OSError: a file can't be read.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CARD)
    digests = {CONFIG: _config_digest, FACTS: _facts_digest}
    return {path.name: digests.get(path.name, file_digest)(path) for path in files}


def _config_digest(path: Path) -> str:
    content = path.read_bytes()
    try:
        settings = json.loads(content)
        told = {key: _in_order(value) for key, value in settings.items() if key != BASE}
        return sha256(canonical_json(told))
    except (ValueError, AttributeError, RecursionError):
        return sha256(content)  # not what was exported


def _facts_digest(path: Path) -> str:
    content = path.read_bytes()
    try:
        facts = AdapterFacts.model_validate_json(content)
    except ValidationError:
        return sha256(content)
    return sha256(facts.model_copy(update=dict.fromkeys(NOTES)).as_text().encode())


def _in_order(value: object) -> object:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return sorted(value)
    return value


def check_adapter(facts: Facts, path: Path, folder: Path | None) -> Iterator[Finding]:
    """Compare the adapter in a folder with the one that a dossier is about.

    Args:
        path: the dossier's path, for messages.
        folder: the adapter's folder; None if nobody has named one.

    Raises:
        OtherAdapterError: the folder holds another adapter.
        ConfigError: the adapter can't be read.
    """
    stated = facts.adapter
    if folder is None:
        yield left_open("which adapter it is about: give --adapter DIR with the one that you have")
        return
    try:
        found = adapter_digests(folder)
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
        fix = "Name the folder of an adapter."
        raise ConfigError(problem, file=error.filename or folder, fix=fix) from None
    for name, digest in stated.items():
        # Version 0.2.0 stated the digest of the facts' file as it is.
        if name == FACTS and FACTS in found and file_digest(folder / FACTS) == digest:
            continue
        if found.get(name) != digest:
            raise OtherAdapterError(
                f"{folder / name}: is not the file that {path} is about. It has"
                f" {found.get(name, 'no such file')}, and the dossier {digest}. The dossier says"
                " nothing about this adapter."
            )
    yield holds(f"{folder} is the adapter that it is about, by the digests of {', '.join(stated)}")
    if others := sorted(found.keys() - stated.keys()):
        yield word(f"what else is in {folder}: {', '.join(others)}")
