"""What `fedpriv-server status` says: whether a server runs, and how its job stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedpriv.errors import RunError
from fedpriv.process import STATUS, read_status
from fedpriv_server.job_queue import Queue


def facts_of(folder: Path) -> dict[str, Any]:
    """Return what is known about the server of a folder, its job and its sites.

    A site is `there` only while a server runs.

    Raises:
        RunError: no server has worked there.
    """
    facts = read_status(folder)
    if "state" not in facts:
        raise RunError(f"{folder}: no server has worked here.")
    if not facts["running"] and facts["state"] not in ("finished", "stopped"):
        # the problem that it last wrote down no longer counts
        facts |= {"state": "stopped", "problem": "Start the server again, and it goes on."}
    for site in facts["sites"].values():
        site["there"] = site["there"] and facts["running"]
    return facts


def facts_of_lasting(state: Path) -> dict[str, Any]:
    """Return the facts of a lasting server, with those of its running job, if any, as `run`.

    Raises:
        RunError: no server has worked there, or its queue can't be read.
    """
    facts = facts_of(state)
    if facts["job"]:
        with Queue.open(state) as queue:
            folder = queue.job(int(facts["job"])).folder(state)
        if (folder / STATUS).exists():
            facts["run"] = facts_of(folder)
    return facts


def listens(folder: Path) -> bool:
    """Return whether a server listens, or its job has finished."""
    facts = read_status(folder)
    state = facts.get("state")
    return state == "finished" or (facts["running"] and state in ("waiting", "running"))


def there(site: dict[str, Any]) -> str:
    """Return whether a site is there, in words."""
    if site["there"]:
        return "yes"
    return "no" if site["admitted"] else "no: not admitted"


def show(facts: dict[str, Any]) -> None:
    """Print what `facts_of` or `facts_of_lasting` gives."""
    runs = f"A server runs (process {facts['pid']})." if facts["running"] else "No server runs."
    Console(highlight=False).print(runs)
    _show_job(facts)
    if "run" in facts:
        _show_job(facts["run"])


def _show_job(facts: dict[str, Any]) -> None:
    console = Console(highlight=False)
    rounds = f", round {facts['round']} of {facts['rounds']}" if "round" in facts else ""
    console.print(f"{facts['job'] or 'No job'}: {facts['state']}{rounds}")
    if facts.get("problem"):
        console.print(facts["problem"], style="yellow", soft_wrap=True, markup=False)
    table = Table("site", "there", "last answer")
    for name, site in facts["sites"].items():
        table.add_row(name, there(site), site.get("last", ""))
    console.print(table)
