"""Serve the site's page at a port of this machine, to people with its token; buttons decide.

It is a process of its own, beside the client. It never has a record, and the client need not run.
It reads the site's folder again for each request, and gives orders through the same file as the
commands.

`fedpriv.local_page` refuses some requests. Forms of another origin are refused, too: they have
another Origin header, and lack the key that is in this page's own forms.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from fedpriv.config.site_file import SiteFile
from fedpriv.local_page import html, local_app, serve_locally, user_of
from fedpriv_client import persons
from fedpriv_client.jobs import jobs_of
from fedpriv_client.orders import Orders, Said
from fedpriv_client.page import page
from fedpriv_client.settings import site_settings

log = logging.getLogger(__name__)
MOST = 2**14  # bytes of a form
BY = "on the site's page"


def serve_page(file: SiteFile, config: Path, port: int) -> None:
    """Serve the page on this machine until stopped.

    Args:
        port: 0 takes a free one.

    Raises:
        ConfigError: the port can't be bound.
        LedgerError: there is no ledger yet.
    """
    site_settings(file, config)  # errors show here
    serve_locally(lambda token: page_app(file, config, token), file.site.state_dir, port)


def page_app(file: SiteFile, config: Path, token: str) -> FastAPI:
    """Make the app for the page and its buttons.

    Args:
        token: the password; any user name will do.
    """
    app = local_app(token)
    form_key = secrets.token_urlsafe(32)

    @app.get("/")
    def show() -> Response:
        return html(page(file, config, form_key))

    @app.post("/approve")
    async def approve(request: Request) -> Response:
        form = await own_form(request, form_key)
        settings = site_settings(file, config)
        for job in jobs_of(settings).waiting:
            if (job.name, job.asked.digest) == (form["job"], form["digest"]):
                persons.approve(settings, job, await said_in(request, form))
                break
        else:
            raise HTTPException(
                409, "This proposal is not waiting at this price. Load the page again."
            )
        log.info("Job %s was approved: %s.", job.name, job.digest)
        return RedirectResponse("/", 303)

    @app.post("/refuse")
    async def refuse(request: Request) -> Response:
        form = await own_form(request, form_key)
        said = await said_in(request, form)
        Orders.change(file.site.state_dir, lambda stands: stands.refusing(form["job"], said))
        log.info("Job %s was refused.", form["job"])
        return RedirectResponse("/", 303)

    return app


async def said_in(request: Request, form: Mapping[str, str]) -> Said:
    """Read who decides, and why, from a form; if it has no name, from the browser's user name.

    Raises:
        ConfigError: as `persons.said_of`.
    """
    by = form.get("by") or ", ".join(filter(None, (await user_of(request), BY)))
    reason, text = form.get("reason", ""), form.get("text", "")
    return persons.said_of(by, reason, text, agreed=form.get("agreed") == "yes")


async def own_form(request: Request, form_key: str) -> dict[str, str]:
    """Read the fields of a form of this page: they include a job and a digest.

    Raises:
        HTTPException: the form came from another page, or is not such a form.
    """
    origin = request.headers.get("origin")
    if origin != f"http://{request.headers['host']}":
        raise HTTPException(403, "This form was not sent by this page.")
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > MOST:
            raise HTTPException(413, "Too long for a form of this page.")
    form = dict(parse_qsl(content.decode("utf-8", "replace")))
    if not hmac.compare_digest(form.get("form_key", "").encode(), form_key.encode()):
        raise HTTPException(403, "This form is out of date. Reload the page.")
    if not form.get("job") or not form.get("digest"):
        raise HTTPException(422, "The form names no job.")
    return form
