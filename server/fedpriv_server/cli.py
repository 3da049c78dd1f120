"""`fedpriv-server`: run jobs with the sites of a federation, and say how they go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedpriv import __version__, logs
from fedpriv.command_line import run
from fedpriv.config.load import load_job
from fedpriv.config.server import ServerSection
from fedpriv.environment import set_environment
from fedpriv.errors import RunningError
from fedpriv.process import read_status, stop_on_terminate
from fedpriv_server import queue_commands
from fedpriv_server.consortium import load_consortium
from fedpriv_server.queue_commands import AsJson, Replaced, State
from fedpriv_server.status import facts_of, facts_of_lasting, listens, show

Plain = Annotated[bool, typer.Option("--plain", help="Use HTTP without TLS, on this machine only.")]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Write log lines as JSON.")]
app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables
    invoke_without_command=True,
    help="Run a federation file's job between institutions. A job that was stopped goes on.",
)


@app.callback()
def serve(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="The federation file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory.", show_default="runs/<name>")
    ] = None,
    set_: Replaced = None,
    plain: Plain = False,
    json_logs: JsonLogs = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Listen for the sites and run the rounds; a run that was stopped goes on where it was."""
    if version:
        print(f"fedpriv-server {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise typer.BadParameter("give the federation file", param_hint="--config")
    job = load_job(config, set_ or [])
    out = out or Path("runs") / job.job.name
    section = job.server if job.job.engine == "network" else None
    _prepare(section, config, out, plain=plain, json_logs=json_logs)
    from fedpriv_server.serve import serve as serve_job

    serve_job(job, out, source=config, plain=plain)


@app.command(name="serve")
def serve_sites(
    consortium: Annotated[Path, typer.Argument(help="A file with [server] and [[sites]].")],
    state: State,
    plain: Plain = False,
    json_logs: JsonLogs = False,
) -> None:
    """Serve a consortium for years: run the submitted jobs one after the other."""
    section = load_consortium(consortium).server
    _prepare(section, consortium, state, plain=plain, json_logs=json_logs)
    from fedpriv_server.lasting import serve_consortium

    serve_consortium(consortium, state, plain=plain)


def _prepare(
    section: ServerSection | None, source: Path, folder: Path, *, plain: bool, json_logs: bool
) -> None:
    """Refuse at once what can't be used, because the code that serves takes long to load."""
    logs.configure(as_json=json_logs)
    stop_on_terminate()
    if section is None:
        return
    from fedpriv_server.listen import check_ports, checked_certificate

    if not plain:
        checked_certificate(section)
    facts = read_status(folder)
    if facts["running"]:
        raise RunningError(f"{folder}: another process works in it already. Stop that one first.")
    if facts.get("state") != "finished":
        check_ports(section, source, plain=plain)


@app.command()
def status(
    out: Annotated[Path | None, typer.Option(help="The run directory of one job.")] = None,
    state: Annotated[Path | None, typer.Option(help="The folder of a lasting server.")] = None,
    as_json: AsJson = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Print nothing; exit with 0 if it listens or has finished, else with 1."
        ),
    ] = False,
) -> None:
    """Show whether a server runs, the state of its job, and which site it waits for."""
    folder = out or state
    if folder is None or (out and state):
        raise typer.BadParameter("give exactly one of the two", param_hint="--out or --state")
    if probe:
        raise typer.Exit(0 if listens(folder) else 1)
    facts = facts_of(folder) if state is None else facts_of_lasting(folder)
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        show(facts)


queue_commands.add_to(app)


def main() -> None:
    """Run the `fedpriv-server` command."""
    set_environment()
    run(app)
