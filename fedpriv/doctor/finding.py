"""One thing that the doctor looked at, and what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedpriv.errors import FedprivError


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor looked at.

    Attributes:
        what: the thing, in a word or two.
        ok: whether it is right; None if that could not be checked, or if it is worth knowing only.
        found: the finding in a sentence; if it is wrong, with what to do.
        exit_code: the exit code of the error, if it is wrong.
    """

    what: str
    ok: bool | None
    found: str
    exit_code: int = 0


class DoubtError(Exception):
    """Raised by a look that found no fault, but can't say that all is right either."""


def look(what: str, how: Callable[[], str]) -> Finding:
    """Look at something: `how` returns what it found, or raises what is wrong."""
    try:
        return Finding(what, True, how())
    except DoubtError as doubt:
        return Finding(what, None, str(doubt))
    except FedprivError as error:
        return Finding(what, False, str(error), error.exit_code)
    except OSError as error:  # such as a folder without permission, or a full disk
        return Finding(what, False, f"{error.filename or 'A file'}: {error.strerror}.", 2)
