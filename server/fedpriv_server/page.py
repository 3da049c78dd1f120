"""The coordinator's page: the queue, the running job, the sites, and how earlier jobs ended.

A process of its own serves it, and reads the state folder anew for each request.
So the page is there whether a server runs or not. It has no buttons.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.errors import RunError
from fedpriv.report.page_parts import css_colours, templates
from fedpriv_server.job_queue import ENDED, Queue
from fedpriv_server.status import facts_of, there

if TYPE_CHECKING:
    from fastapi import FastAPI

REFRESH = 5  # seconds after which a browser loads the page again
SHOWN = 50  # ended jobs, at most


def page(state: Path) -> str:
    """Return the page as it is now.

    Raises:
        RunError: the queue can't be read.
    """
    with Queue.open(state) as queue:
        jobs = queue.jobs()
    running = next((job for job in jobs if job.state == "running"), None)
    ended = [job for job in reversed(jobs) if job.state in ENDED]
    template = templates("fedpriv_server").get_template("page.html.j2")
    return template.render(
        name=state.resolve().name,
        folder=state.resolve(),
        server=_facts(state),
        running=running,
        now={} if running is None else _facts(running.folder(state)),
        waiting=[job for job in jobs if job.state == "waiting"],
        ended=ended[:SHOWN],
        older=len(ended[SHOWN:]),
        owed={job.id: _owed(job.folder(state)) for job in ended[:SHOWN]},
        there=there,
        read=datetime.fromisoformat,
        made=datetime.now(UTC),
        progress={"refresh": REFRESH},
        css_colours=css_colours,
    )


def coordinator_app(state: Path, token: str) -> FastAPI:
    """Return the web app that shows the page."""
    from fastapi import Response

    from fedpriv.local_page import html, local_app

    app = local_app(token)

    @app.get("/")
    def show() -> Response:
        return html(page(state))

    return app


def _owed(run: Path) -> dict[str, list[str]]:
    """Return for each site, in words, what is still owed after a job."""
    try:
        kept = json.loads((run / "run.json").read_text(encoding="utf-8"))["owed"]
        said = {"reports": "its budget report is missing", "adapters": "it has not got the adapter"}
        sites = {name for names in kept.values() for name in names}
        return {s: [said[key] for key, names in kept.items() if s in names] for s in sites}
    except (OSError, ValueError, KeyError):
        return {}


def _facts(folder: Path) -> dict[str, Any]:
    try:
        return facts_of(folder)
    except RunError:
        return {"running": False, "sites": {}, "problem": "", "job": ""}
