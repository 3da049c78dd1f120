"""Output in letters that a terminal or a file can't hold: their names in their place, no error."""

from __future__ import annotations

import io
import sys


def use_readable_output() -> None:
    """Let standard output and errors write what they can't hold by its name.

    A stream that holds them all is left as it is, but for half characters, such as of the name of
    a file that is not in UTF-8. Another program's own stream, as of a notebook, is left alone.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="namereplace")
