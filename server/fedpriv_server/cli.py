"""`fedpriv-server`: run a job with the sites of a federation, and say how it goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpriv import __version__
from fedpriv.command_line import run
from fedpriv.environment import set_environment
from fedpriv.errors import RunError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables
    invoke_without_command=True,
    help="Run a federation file's job between institutions. Started again, it goes on.",
)


@app.callback()
def serve(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="Federation file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory.", show_default="runs/<name>")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="HTTP without TLS, on this machine only.")
    ] = False,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="A JSON object a line.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show and exit.")] = False,
) -> None:
    """Listen for the sites and run the rounds; what was stopped goes on where it was."""
    if version:
        print(f"fedpriv-server {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise typer.BadParameter("give the federation file", param_hint="--config")
    from fedpriv import logs
    from fedpriv.config.load import load_job
    from fedpriv.process import stop_on_terminate

    job = load_job(config, set_ or [])
    logs.configure(as_json=json_logs)
    stop_on_terminate()
    if job.job.engine == "network" and job.server is not None and not plain:
        from fedpriv_server.listen import checked_certificate

        checked_certificate(job.server)  # at once: what serves takes long to load
    from fedpriv_server.serve import serve as serve_job

    serve_job(job, out or Path("runs") / job.job.name, source=config, plain=plain)


@app.command()
def status(
    out: Annotated[Path, typer.Option(help="Run directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Print nothing; exit with 0 if it listens or has finished, else 1."
        ),
    ] = False,
) -> None:
    """How the job in a run directory goes, and which site it waits for."""
    from fedpriv.process import read_status

    facts = read_status(out)
    if probe:
        listens = facts["running"] and facts.get("state") in ("waiting", "running")
        raise typer.Exit(0 if listens or facts.get("state") == "finished" else 1)
    if "state" not in facts:
        raise RunError(f"{out}: no server has worked here.")
    if not facts["running"] and facts["state"] != "finished":
        facts["state"] = "stopped"
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    console = Console(highlight=False)
    rounds = f", round {facts['round']} of {facts['rounds']}" if "round" in facts else ""
    console.print(f"{facts['job']}: {facts['state']}{rounds}")
    if facts.get("problem"):
        console.print(facts["problem"], style="yellow", soft_wrap=True)
    table = Table("site", "there", "last answer")
    for name, site in facts["sites"].items():
        admitted = "yes" if site["there"] else "no" if site["admitted"] else "no: not admitted"
        table.add_row(name, admitted, site["last"])
    console.print(table)


def main() -> None:
    """The `fedpriv-server` command."""
    set_environment()
    run(app)
