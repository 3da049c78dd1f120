"""The person at a terminal: what can be shown there, and a question."""

from __future__ import annotations

import io
import sys

from fedpriv.errors import ConfigError


def use_readable_output() -> None:
    """Let standard output and errors write what they can't hold by its name.

    A stream that holds them all is left as it is, but for half characters, such as of the name of
    a file that is not in UTF-8. Another program's own stream, as of a notebook, is left alone.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="namereplace")


def confirm(question: str, *, yes: bool) -> None:
    """Ask a question whose "no" ends the command; `yes` answers it beforehand.

    Raises:
        ConfigError: there is no terminal to ask at. Silence is no yes.
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
