"""A secret that a site keeps in a file: made once, for its owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from fedpriv.errors import FedprivError, LedgerError
from fedpriv.files import replacing


class Secret:
    """Base of objects that show nothing of themselves, and can't be pickled, copied or sent."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __reduce__(self) -> NoReturn:
        what = f"{type(self).__name__} is secret and must not leave"
        raise TypeError(f"{what}: it can't be pickled or copied.")


def load_or_create_secret(
    path: Path, make: Callable[[], bytes], *, name: str, leaked: str
) -> bytes:
    """Return the content of `path` (0600), made by `make` on first use.

    If two processes make it at once, both get the same content.

    Args:
        name: what the secret is, for error messages.
        leaked: what to know or do if somebody else has read it, in a sentence.

    Raises:
        LedgerError: the file can't be used, or may be read or changed by others.
    """
    try:
        if not path.exists():
            with suppress(FileExistsError):
                create_secret(path, make())
    except OSError as error:
        raise LedgerError(f"{path}: the {name} can't be used: {error.strerror}.") from None
    return load_secret(path, name=name, leaked=leaked)


def create_secret(path: Path, content: bytes) -> None:
    """Write a new file (0600), durably.

    Raises:
        FileExistsError: there is one, and it stays.
        OSError: it can't be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path, 0o600, new=True) as file:
        file.write_bytes(content)


def load_secret(
    path: Path, *, name: str, leaked: str, error: type[FedprivError] = LedgerError
) -> bytes:
    """Return the content of `path`. For the arguments see `load_or_create_secret`.

    Raises:
        FedprivError: the file can't be read, or others may read or change it. `error` is its type.
    """
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            content = stream.read()
    except OSError as problem:
        raise error(f"{path}: the {name} can't be used: {problem.strerror}.") from None
    if mode & 0o077:
        raise error(
            f"{path}: the {name} may be read or changed by other users (mode {mode:04o})."
            f" Run chmod 600 {path}. {leaked}"
        )
    return content
