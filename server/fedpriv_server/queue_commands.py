"""The commands of `fedpriv-server` that speak to the queue, whether a server runs or not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedpriv import logs
from fedpriv.config.load import load_job
from fedpriv.process import stop_on_terminate
from fedpriv_server.consortium import server_of
from fedpriv_server.job_queue import Queue, QueuedJob

State = Annotated[Path, typer.Option(help="A lasting server's folder, with queue and runs.")]
Number = Annotated[int, typer.Argument(help="The job's number; list shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Replaced = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the file."),
]


def submit(
    file: Annotated[Path, typer.Argument(help="The federation file.")],
    state: State,
    token: Annotated[
        str | None, typer.Option(help="A word of yours: a job with the same token is queued once.")
    ] = None,
    set_: Replaced = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Queue it even if, by their reports, sites can't pay.")
    ] = False,
) -> None:
    """Queue a federation file's job as it is now; later changes of the file do not count."""
    config = load_job(file, set_ or [])
    server_of(config, file)
    if not anyway:
        from fedpriv_server.affordable import check_affordable, last_reports

        check_affordable(config, last_reports(state).values())
    with Queue.open(state) as queue:
        number, is_new = queue.submit(config, file.resolve(), token)
        before = f"was queued before: it is {queue.job(number).state}"
    print(f"Job {number} {'is queued' if is_new else before}.")


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


def abort(job: Number, state: State) -> None:
    """Abort a job: at once if it waits, when its round is over if it runs."""
    with Queue.open(state) as queue:
        found = queue.abort(job)
    said = "aborted" if found.state == "aborted" else "aborted when its round is over"
    print(f"Job {job} is {said}.")


def retry(job: Number, state: State) -> None:
    """Queue a failed or aborted job again, behind all others; it goes on where it was."""
    with Queue.open(state) as queue:
        queue.retry(job)


def reorder(
    job: Number,
    state: State,
    first: Annotated[bool, typer.Option("--first", help="Put it first.")] = False,
    before: Annotated[
        int | None, typer.Option(metavar="JOB", help="Put it before this job.")
    ] = None,
) -> None:
    """Move a waiting job before another waiting job."""
    if first == (before is not None):
        raise typer.BadParameter("give exactly one of the two", param_hint="--first or --before")
    with Queue.open(state) as queue:
        queue.reorder(job, before)


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


def add_to(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    app.command()(submit)
    app.command(name="list")(jobs)
    for command in (show, abort, retry, reorder, serve_page):
        app.command()(command)
