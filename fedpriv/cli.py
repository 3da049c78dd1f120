"""`fedpriv`: the commands of the library, and those that installed packages add.

A package adds a command through the entry-point group ``fedpriv.commands``: the name of the
command, and a function or a `typer.Typer`. Commands import what is heavy when they run.
"""

from __future__ import annotations

import errno
import shutil
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedpriv import __version__
from fedpriv.commands.doctor import doctor
from fedpriv.commands.dossier import export, verify
from fedpriv.commands.forecast import forecast
from fedpriv.commands.ledger import app as ledger_app
from fedpriv.commands.plan import plan
from fedpriv.commands.roster import app as roster_app
from fedpriv.environment import set_environment
from fedpriv.errors import FedprivError, RunError
from fedpriv.hub.command import adapter
from fedpriv.hub.generate_command import generate
from fedpriv.logs import discreet
from fedpriv.recipes import RECIPES, write_recipe
from fedpriv.terminal import use_readable_output

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_NAMED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, records among them
)
app.add_typer(ledger_app, name="ledger")
app.add_typer(roster_app, name="roster")
app.command()(plan)
app.command()(forecast)
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
    from fedpriv.report import budget
    from fedpriv.report.html import write_report

    for path in sorted(run.glob("sites/*/budget.json")):
        budget.verify(budget.read(path))
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


def run(app: typer.Typer) -> NoReturn:
    """Run a command line; an error on purpose is one line and the exit code of its class.

    Of any other only class, files and lines are shown, for its text may quote a record; with
    ``PYTHONDEVMODE=1`` all of it. So it is in every thread. Letters that a terminal does not have
    are written in others, see `fedpriv.terminal`.
    """
    use_readable_output()
    threading.excepthook = _fault_of_a_thread
    try:
        code = app(standalone_mode=False)  # of an early exit, such as Ctrl-C; else None
    except FedprivError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except typer.Abort:
        raise SystemExit(130) from None
    except OSError as error:
        if error.errno in _DISK:
            advice = "Make room and start again."
        elif error.errno in _NAMED and error.filename:
            advice = "Name another, or mend it."
        else:
            _fault(error)
        where = error.filename or "A file"
        print(f"error: {where}: {error.strerror}. {advice}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:
        if hasattr(error, "show"):  # a usage error of the command line
            error.show()
            raise SystemExit(2) from None
        _fault(error)
    raise SystemExit(code)


def _fault(error: Exception) -> NoReturn:
    if sys.flags.dev_mode:
        raise error
    _say(error, "fedpriv")
    raise SystemExit(1) from None


def _fault_of_a_thread(found: threading.ExceptHookArgs) -> None:
    if sys.flags.dev_mode or found.exc_value is None:
        threading.__excepthook__(found)
    elif not isinstance(found.exc_value, SystemExit):
        _say(found.exc_value, f"a thread ({found.thread.name if found.thread else 'ended'})")


def _say(error: BaseException, whose: str) -> None:
    print(f"error: a fault of {whose}\n{discreet(error)}", file=sys.stderr)
