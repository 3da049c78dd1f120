"""Which adapter a dossier is about: digests of its files, as they are on any machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fedpriv.base_model import CONFIG
from fedpriv.dossier.facts import Facts
from fedpriv.dossier.findings import Finding, holds, left_open, word
from fedpriv.errors import ConfigError, OtherAdapterError
from fedpriv.files import canonical_json, file_digest, sha256

CARD = "README.md"  # for people, and everybody may write another
BASE = "base_model_name_or_path"  # where a machine has the base; its digest says which one it is


def adapter_digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file of an adapter but its card, by name.

    The digest of peft's settings is of their JSON without the place of the base model, and with
    names in alphabetical order: peft writes sets of them, in an order that every process has anew.

    Raises:
        OSError: one can't be read.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CARD)
    return {
        path.name: _config_digest(path) if path.name == CONFIG else file_digest(path)
        for path in files
    }


def _config_digest(path: Path) -> str:
    content = path.read_bytes()
    try:
        settings = json.loads(content)
        told = {key: _in_order(value) for key, value in settings.items() if key != BASE}
        return sha256(canonical_json(told))
    except (ValueError, AttributeError, RecursionError):
        return sha256(content)  # something else than was exported


def _in_order(value: object) -> object:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return sorted(value)
    return value


def check_adapter(facts: Facts, path: Path, folder: Path | None) -> Iterator[Finding]:
    """Compare the adapter in a folder with the one that a dossier is about.

    Args:
        path: of the dossier, for messages.
        folder: None: nobody has named one.

    Raises:
        OtherAdapterError: it is another.
        ConfigError: it can't be read.
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
        if found.get(name) != digest:
            raise OtherAdapterError(
                f"{folder / name}: is not the file that {path} is about. It has"
                f" {found.get(name, 'no such file')}, and the dossier {digest}. Of this adapter the"
                " dossier says nothing."
            )
    yield holds(f"{folder} is the adapter that it is about, by the digests of {', '.join(stated)}")
    if others := sorted(found.keys() - stated.keys()):
        yield word(f"what else is in {folder}: {', '.join(others)}")
