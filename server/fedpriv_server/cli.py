"""`fedpriv-server`: run jobs with the sites of a federation, and say how they go."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpriv import __version__, logs
from fedpriv.command_line import run
from fedpriv.config.load import load_job
from fedpriv.environment import set_environment
from fedpriv.process import stop_on_terminate
from fedpriv_server import status as of_server
from fedpriv_server.consortium import server_of
from fedpriv_server.job_queue import Queue, QueuedJob

Plain = Annotated[bool, typer.Option("--plain", help="Use HTTP without TLS, on this machine only.")]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Write log lines as JSON.")]
State = Annotated[Path, typer.Option(help="A lasting server's folder, with queue and runs.")]
Number = Annotated[int, typer.Argument(help="The job's number; list shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Replaced = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the file."),
]
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
    logs.configure(as_json=json_logs)
    stop_on_terminate()
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
    logs.configure(as_json=json_logs)
    stop_on_terminate()
    from fedpriv_server.lasting import serve_consortium

    serve_consortium(consortium, state, plain=plain)


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
        raise typer.Exit(0 if of_server.listens(folder) else 1)
    facts = of_server.facts_of(folder) if state is None else of_server.facts_of_lasting(folder)
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        of_server.show(facts)


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="The federation file.")],
    state: State,
    set_: Replaced = None,
) -> None:
    """Queue a federation file's job as it is now; later changes of the file do not count."""
    config = load_job(file, set_ or [])
    server_of(config, file)
    with Queue.open(state) as queue:
        number = queue.submit(config, file.resolve())
    print(f"Job {number} is queued.")


@app.command(name="list")
def jobs(state: State, as_json: AsJson = False) -> None:
    """List the jobs in order: the ended ones, the running one, and the waiting ones."""
    with Queue.open(state) as queue:
        found = queue.jobs()
    if as_json:
        print(json.dumps([_shown(job, state) for job in found], indent=2))
        return
    table = Table("job", "name", "state", "submitted", "why it ended")
    for job in found:
        table.add_row(str(job.id), job.name, _state(job), job.submitted, escape(job.why))
    Console(highlight=False).print(table)


@app.command()
def show(job: Number, state: State, as_json: AsJson = False) -> None:
    """Show how a job ended and why, which sites took part, and which did not."""
    with Queue.open(state) as queue:
        found = queue.job(job)
    if as_json:
        print(json.dumps(_shown(found, state), indent=2))
        return
    print(f"Job {found.id}, {found.name}: {_state(found)}. {found.why}".rstrip())
    print(f"Run directory: {found.folder(state)}")
    print(f"Submitted {found.submitted}, begun {found.begun or '–'}, ended {found.ended or '–'}")
    for name, site in found.sites.items():
        print(f"  {name}: {site['rounds']} rounds, {site['last']}")


def _state(job: QueuedJob) -> str:
    return "running, to be aborted" if job.state == "running" and job.abort else job.state


def _shown(job: QueuedJob, state: Path) -> dict[str, object]:
    fields = {key: value for key, value in asdict(job).items() if key != "settings"}
    return {**fields, "run": str(job.folder(state))}


@app.command()
def abort(job: Number, state: State) -> None:
    """Abort a job: at once if it waits, when its round is over if it runs."""
    with Queue.open(state) as queue:
        found = queue.abort(job)
    said = "aborted" if found.state == "aborted" else "to be aborted when its round is over"
    print(f"Job {job} is {said}.")


@app.command()
def retry(job: Number, state: State) -> None:
    """Queue a failed or aborted job again, behind all others; it goes on where it was."""
    with Queue.open(state) as queue:
        queue.retry(job)


@app.command()
def reorder(job: Number, state: State) -> None:
    """Put a waiting job before all others that wait."""
    with Queue.open(state) as queue:
        queue.put_first(job)


@app.command()
def serve_page(
    state: State,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Local port; 0: any.")] = 8641,
) -> None:
    """Serve a page with queue, sites and history to this machine alone."""
    from fedpriv.local_page import serve_locally
    from fedpriv_server.page import coordinator_app, page

    logs.configure(as_json=False)
    stop_on_terminate()
    page(state)  # what is wrong shows here
    serve_locally(lambda token: coordinator_app(state, token), state, port)


def main() -> None:
    """Run the `fedpriv-server` command."""
    set_environment()
    run(app)
