"""Show text to the person at a terminal, and ask a question."""

from __future__ import annotations

import io
import sys

from fedpriv.errors import ConfigError


def use_readable_output() -> None:
    """Let standard output and errors write characters that they can't encode by name.

    If a stream can encode all characters, only half characters change, such as those of a file name
    that is not in UTF-8. Another program's own stream, such as a notebook's, is left alone.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="namereplace")


def confirm(question: str, *, yes: bool) -> None:
    """Ask a question. A "no" ends the command, and `yes` answers it beforehand.

    Raises:
        ConfigError: there is no terminal to ask at. Silence is not a yes.
    """
    import typer

    if yes:
        return
    if not is_asked():
        raise ConfigError("is needed, as there is no terminal to ask at", key="--yes")
    typer.confirm(question, abort=True)


def is_asked() -> bool:
    """Tell whether there is somebody to ask."""
    return sys.stdin.isatty()
