"""The commands of `fedpriv-server` that speak to the queue, whether a server runs or not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedpriv_server.job_queue import QueuedJob

State = Annotated[Path, typer.Option(help="Folder of a server that lasts: its queue and runs.")]
Number = Annotated[int, typer.Argument(help="Number of the job.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def submit(
    file: Annotated[Path, typer.Argument(help="Federation file.")],
    state: State,
    token: Annotated[
        str | None, typer.Option(help="Submitted again with the same token, it is queued once.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Queue what sites can't pay for by their reports.")
    ] = False,
) -> None:
    """Queue a federation file's job, as it is now: later changes of the file change nothing."""
    from fedpriv.config.load import load_job
    from fedpriv_server.affordable import check_affordable, last_reports
    from fedpriv_server.consortium import server_of
    from fedpriv_server.job_queue import Queue

    config = load_job(file, set_ or [])
    server_of(config, file)
    if not anyway:
        check_affordable(config, last_reports(state).values())
    with Queue.open(state) as queue:
        number, is_new = queue.submit(config, file.resolve(), token)
        before = f"was queued before: it is {queue.job(number).state}"
    print(f"Job {number} {'is queued' if is_new else before}.")


def jobs(state: State, as_json: AsJson = False) -> None:
    """List the jobs: those that ended, the running one, and those that wait, in their order."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedpriv_server.job_queue import Queue

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
    """Show a job: how it ended and why, which sites took part, and which did not."""
    from fedpriv_server.job_queue import Queue

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
    """End a job: at once if it waits, when its round is over if it runs."""
    from fedpriv_server.job_queue import Queue

    with Queue.open(state) as queue:
        found = queue.abort(job)
    said = "aborted" if found.state == "aborted" else "aborted when its round is over"
    print(f"Job {job} is {said}.")


def retry(job: Number, state: State) -> None:
    """Let a job that failed or was aborted go on where it was, after all that wait."""
    from fedpriv_server.job_queue import Queue

    with Queue.open(state) as queue:
        queue.retry(job)


def reorder(
    job: Number,
    state: State,
    first: Annotated[bool, typer.Option("--first", help="Before all that wait.")] = False,
    before: Annotated[int | None, typer.Option(metavar="JOB", help="Before this one.")] = None,
) -> None:
    """Put a job that waits before another one."""
    from fedpriv_server.job_queue import Queue

    if first == (before is not None):
        raise typer.BadParameter("give one of them", param_hint="--first or --before")
    with Queue.open(state) as queue:
        queue.reorder(job, before)


def serve_page(
    state: State,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Of this machine; 0: any.")] = 8641,
) -> None:
    """Serve a page of queue, sites and history to this machine alone."""
    from fedpriv import logs
    from fedpriv.local_page import serve_locally
    from fedpriv.process import stop_on_terminate
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
