"""`fedpriv`: the commands of the library, and those that installed packages add.

A package adds a command through the entry-point group ``fedpriv.commands``: the name of the
command, and a function or a `typer.Typer`. Commands import what is heavy when they run.
"""

from __future__ import annotations

import shutil
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from fedpriv import __version__
from fedpriv.command_line import run
from fedpriv.commands.doctor import doctor
from fedpriv.commands.dossier import export, verify
from fedpriv.commands.ledger import app as ledger_app
from fedpriv.commands.plan import plan
from fedpriv.commands.roster import app as roster_app
from fedpriv.environment import set_environment
from fedpriv.errors import RunError
from fedpriv.hub.command import adapter
from fedpriv.hub.generate_command import generate
from fedpriv.recipes import RECIPES, write_recipe

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, records among them
)
app.add_typer(ledger_app, name="ledger")
app.add_typer(roster_app, name="roster")
app.command()(plan)
app.command()(doctor)
app.command()(adapter)
app.command()(generate)
app.command()(export)
app.command()(verify)


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


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="New folder for the copy.")],
    recipe: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Another example: {', '.join(RECIPES)}."),
    ] = None,
) -> None:
    """Copy the embedded clinics, their file and their notes, to start your own from."""
    from fedpriv.config.load import EMBEDDED

    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: is not empty. Name a new folder.")
    if recipe is not None:
        file = write_recipe(recipe, folder)
        print(f"Written. Read {folder / 'README.md'}, then:\n  fedpriv simulate {file}")
        return
    shutil.copytree(EMBEDDED.parent, folder, dirs_exist_ok=True)
    print(
        f"Copied. Edit {folder / EMBEDDED.name}, then:\n  fedpriv simulate {folder / EMBEDDED.name}"
    )


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
) -> None:
    """Check the signatures of a run's budget reports and write its report.html anew."""
    from fedpriv.process import is_running
    from fedpriv.report import budget, received
    from fedpriv.report.html import write_report

    for path in sorted(run.glob("sites/*/budget.json")):
        received.verify(budget.read(path))
    print(write_report(run, alive=is_running(run)))


def main() -> None:
    """The `fedpriv` command."""
    set_environment()
    for point in entry_points(group="fedpriv.commands"):
        command = point.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=point.name)
        else:
            app.command(point.name)(command)
    run(app)
