"""`fedpriv consortium demo`: run a coordinator and three hospitals as processes of this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.cores import usable
from fedpriv.errors import RunError
from fedpriv.recipes import write_recipe

app = typer.Typer(help="A coordinator and its hospitals.", no_args_is_help=True)
SITES = {"surgery": 250, "radiology": 208, "general-medicine": 250}  # units, as they declare
LOOK = 0.2  # seconds between two looks at which processes run
FEDERATION = """\
[job]
name = "demo"
engine = "network"
rounds = {rounds}
min_sites = 3
[server]
address = "localhost:{port}"
[model]
name = "embedded"
max_length = 32
[data]
columns = {{ text = "transcription" }}
[privacy]
epsilon = 3.0
delta = 1e-5
unit = "record"
max_records_per_unit = 1
[evaluation]
data = "held-out.jsonl.gz"
limit = 40
"""


@app.callback()
def consortium() -> None:
    """Keep `demo` a command of its own: typer makes a lone one the whole program."""


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="New folder of all of them.")],
    rounds: Annotated[int, typer.Option(min=1, help="Of the job.")] = 5,
) -> None:
    """Start a server and three sites on this machine, as people do it, and run one job."""
    if folder.exists():
        raise RunError(f"{folder}: is there already, and a ledger is made once. Name a new folder.")
    coordinator = folder / "coordinator"
    write_recipe("hospitals", folder / "notes")
    coordinator.mkdir()
    shutil.copy(folder / "notes" / "held-out.jsonl.gz", coordinator)
    text = FEDERATION.format(rounds=rounds, port=_free_port())
    named = "".join(f'[[sites]]\nname = "{name}"\n' for name in SITES)
    (coordinator / "federation.toml").write_text(text + named, encoding="utf-8")
    _type(coordinator, "fedpriv", "provision", "federation.toml")
    for name, size in SITES.items():
        shutil.copytree(coordinator / "pki" / "enrolments" / name, folder / name)
        shutil.copyfile(folder / "notes" / f"{name}.jsonl.gz", folder / name / "notes.jsonl.gz")
        # The first answer trusts the coordinator's authority. The others are in the order of
        # `fedpriv-client setup`.
        answers = ["y", "notes.jsonl.gz", str(size), "12", "", f"../{name}.witness", "", ""]
        _type(folder / name, "fedpriv-client", "setup", answers=answers)
    with ExitStack() as stack:
        order = ("fedpriv-client", "--config", "site.toml")
        sites = {name: stack.enter_context(_running(folder / name, *order)) for name in SITES}
        job = ("--config", "federation.toml", "--out", "run")
        server = stack.enter_context(_running(coordinator, "fedpriv-server", *job))
        while server.poll() is None:
            ended = [name for name, site in sites.items() if site.poll() is not None]
            if ended:
                raise RunError(f"{folder / ended[0]}: the client ended. Its log is above.")
            time.sleep(LOOK)
    if server.returncode:
        raise typer.Exit(server.returncode)
    typer.echo(f"\nOpen {coordinator / 'run' / 'report.html'}. What a hospital sees:")
    typer.echo(f"  cd {folder / 'surgery'} && fedpriv-client jobs && fedpriv-client serve-page")


def _type(where: Path, *command: str, answers: Sequence[str] = ()) -> None:
    """Run a command in a folder, and show it as a person would have typed it.

    Raises:
        RunError: the command failed.
    """
    typer.secho(f"\n{where.name}$ {' '.join(command)}", bold=True)
    said = "\n".join(answers) + "\n" if answers else None
    if subprocess.run(_installed(command), cwd=where, input=said, text=True).returncode:
        raise RunError(f"{where}: {' '.join(command)}: failed. Nothing was started.")


@contextmanager
def _running(where: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a folder, put its name before each line, and stop it at the end."""
    typer.secho(f"{where.name}$ {' '.join(command)}", bold=True)
    pipe, out = subprocess.PIPE, subprocess.STDOUT
    # Four processes share this machine's cores.
    threads = {**os.environ, "OMP_NUM_THREADS": str(max(1, usable() // (len(SITES) + 1)))}
    process = subprocess.Popen(
        _installed(command), cwd=where, env=threads, stdout=pipe, stderr=out, text=True
    )

    def tell() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            typer.echo(f"{where.name:>16} | {line}", nl=False)

    reader = threading.Thread(target=tell)
    reader.start()
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        reader.join()


def _installed(command: Sequence[str]) -> list[str]:
    """Return the command with its path in the environment of this process."""
    return [str(Path(sys.executable).with_name(command[0])), *command[1:]]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
