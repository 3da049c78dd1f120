"""A secret that a site keeps in a file: made once, for its owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from fedpriv.errors import LedgerError
from fedpriv.files import sync_folder, write_atomic


def load_or_create_secret(
    path: Path, make: Callable[[], bytes], *, name: str, leaked: str
) -> bytes:
    """The content of `path` (0600), made by `make` on first use.

    Of two processes that make it at once, both get the same content.

    Args:
        name: what the secret is, for error messages.
        leaked: what to know or do if somebody else has read it, in a sentence.

    Raises:
        LedgerError: the file can't be used, or may be read or changed by others.
    """
    try:
        if not path.exists():
            _create(path, make())
        return _load(path, name, leaked)
    except OSError as error:
        raise LedgerError(f"{path}: the {name} can't be used: {error.strerror}.") from None


def _create(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    write_atomic(fresh, content, mode=0o600)
    try:
        os.link(fresh, path)  # unlike a rename, it never replaces a secret that is in use
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    sync_folder(path.parent)


def _load(path: Path, name: str, leaked: str) -> bytes:
    with path.open("rb") as stream:
        mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        if mode & 0o077:
            raise LedgerError(
                f"{path}: the {name} may be read or changed by other users (mode {mode:04o})."
                f" Run chmod 600 {path}. {leaked}"
            )
        return stream.read()
