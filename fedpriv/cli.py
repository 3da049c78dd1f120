"""`fedpriv`: the commands that installed packages bring.

A package brings a command through the entry-point group ``fedpriv.commands``: the name of the
command, and a function or a `typer.Typer`. Commands import what is heavy when they run.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

from fedpriv import __version__
from fedpriv.command_line import run
from fedpriv.environment import set_environment

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, records among them
)
for point in entry_points(group="fedpriv.commands"):
    command = point.load()
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=point.name)
    else:
        app.command(point.name)(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedpriv {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show and exit.")
    ] = False,
) -> None:
    """Federated, differentially private fine-tuning of language models."""


def main() -> None:
    """Run the `fedpriv` command."""
    set_environment()
    run(app)
