"""One thing that was looked at, and how it was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedpriv.errors import FedprivError


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor looked at.

    Attributes:
        what: the thing, in a word or two.
        ok: None if it could not be looked at, or is no fault but worth knowing.
        found: the finding in a sentence; if it is wrong, with what to do.
        exit_code: the exit code of the error, if it is wrong.
    """

    what: str
    ok: bool | None
    found: str
    exit_code: int = 0


class DoubtError(Exception):
    """Raised by a look that found no fault, but can't vouch for anything either."""


def look(what: str, how: Callable[[], str]) -> Finding:
    """Look at something: `how` says what it found, or raises what is wrong with it."""
    try:
        return Finding(what, True, how())
    except DoubtError as doubt:
        return Finding(what, None, str(doubt))
    except FedprivError as error:
        return Finding(what, False, str(error), error.exit_code)
    except OSError as error:  # a folder that may not be entered, a disk that is full
        return Finding(what, False, f"{error.filename or 'A file'}: {error.strerror}.", 2)
