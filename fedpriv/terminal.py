"""Output in letters that a terminal or a file can't hold: others in their place, and no error."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

_LETTERS = "→←≤≥×·±√–—‘’“”•∞█━─│╸╺✓✗"
_ASCII = "-> <- <= >= x * +- sqrt - - ' ' \" \" * inf # - - | - - v x"
_PLAIN = dict(zip(_LETTERS, _ASCII.split(), strict=True))


def use_readable_output() -> None:
    """Let standard output and errors write what they can't hold in other letters.

    A stream that holds them all is left as it is, but for half characters, such as of the name of
    a file that is not in UTF-8. Another program's own stream, as of a notebook, is left alone.
    """
    codecs.register_error("fedpriv.readable", _readable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fedpriv.readable")


def _readable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(map(_plain, text)), error.end


def _plain(letter: str) -> str:
    """A letter in ASCII; a question mark where nothing is near it."""
    if letter in _PLAIN:
        return _PLAIN[letter]
    name = unicodedata.name(letter, "")
    if name.startswith("GREEK SMALL LETTER "):
        return name.rpartition(" ")[2].lower()
    return "".join(c for c in unicodedata.normalize("NFKD", letter) if c.isascii()) or "?"
