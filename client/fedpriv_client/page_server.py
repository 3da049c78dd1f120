"""The site's page at a port of this machine, for whoever has its token, with buttons to decide.

A process of its own, beside the client: it never has a record, and the client need not run. It
reads the site's folder anew for each look, and gives orders by the same file as the commands.

Other users of this machine can reach the port, and so can the pages that a browser has open. The
first have no token. Of the second, one whose name was bound anew to this machine (DNS rebinding)
is known by the Host that it asks for, and one of another origin by its Origin, and by not having
the key that is in this page's own forms.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qsl

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from fastapi.security import HTTPBasic
from starlette.middleware.trustedhost import TrustedHostMiddleware

from fedpriv.config.site_file import SiteFile
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.files import private_folder, write_atomic
from fedpriv_client import persons
from fedpriv_client.jobs import jobs_of
from fedpriv_client.orders import Orders, Said
from fedpriv_client.page import page
from fedpriv_client.settings import site_settings

log = logging.getLogger(__name__)
HOST = "127.0.0.1"
NAMES = [HOST, "localhost"]  # under which a browser may ask for it
MOST = 2**14  # bytes of a form
BY = "on the site's page"
NONE = "'none'"
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_BASIC = HTTPBasic(realm="the site's page", auto_error=True)
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def serve_page(file: SiteFile, config: Path, port: int) -> None:
    """Serve the page on this machine until stopped.

    Args:
        port: 0 takes a free one.

    Raises:
        ConfigError: the port can't be bound.
        LedgerError: there is no ledger yet.
    """
    site_settings(file, config)  # what is wrong shows here
    with listen_here(port) as listening:  # first: what can't be served takes nobody's token away
        token, path = new_token(file.site.state_dir)
        where = f"http://{HOST}:{listening.getsockname()[1]}/"
        print(f"{where}\nAny user name; the password is what is in {path}.", flush=True)
        served = uvicorn.Config(
            page_app(file, config, token),
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        uvicorn.Server(served).run([listening])


def listen_here(port: int) -> socket.socket:
    """Listen to this machine alone.

    Raises:
        ConfigError: the port can't be bound.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise ConfigError(
            f"can't listen there: {error.strerror}",
            key="--port",
            value=port,
            fix="Is it served already? Name another port.",
        ) from None


def new_token(state_dir: Path) -> tuple[str, Path]:
    """A token for one start of the page, and the file (0600) that it is in.

    While the page is not served another user of the machine may listen at its port, and a browser
    sends there the password that it knows. So that one opens no later page.
    """
    token, path = secrets.token_urlsafe(32), private_folder(state_dir) / "page.token"
    write_atomic(path, token, mode=0o600)
    return token, path


def page_app(file: SiteFile, config: Path, token: str) -> FastAPI:
    """The page, and what its buttons do.

    Args:
        token: the password; any user name will do.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    form_key = secrets.token_urlsafe(32)

    @app.get("/")
    def show() -> Response:
        text = page(file, config, form_key)
        return HTMLResponse(text, headers={"Content-Security-Policy": _policy(text)})

    @app.post("/approve")
    async def approve(request: Request) -> Response:
        form = await own_form(request, form_key)
        settings = site_settings(file, config)
        for job in jobs_of(settings).waiting:
            if (job.name, job.digest) == (form["job"], form["digest"]):
                persons.approve(settings, job, await said_in(request, form))
                break
        else:
            raise HTTPException(409, "This proposal does not wait any more. Load the page again.")
        log.info("Job %s was approved: %s.", job.name, job.digest)
        return RedirectResponse("/", 303)

    @app.post("/refuse")
    async def refuse(request: Request) -> Response:
        form = await own_form(request, form_key)
        said = await said_in(request, form)
        Orders.change(file.site.state_dir, lambda stands: stands.refusing(form["job"], said))
        log.info("Job %s was refused.", form["job"])
        return RedirectResponse("/", 303)

    @app.exception_handler(FedprivError)
    async def wrong(request: Request, error: Exception) -> Response:
        of_the_form = isinstance(error, ConfigError) and error.file is None
        return PlainTextResponse(f"{error}\n", 422 if of_the_form else 503)

    @app.middleware("http")
    async def guard(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            await check_token(request, token)
            response = await call(request)
        except HTTPException as refused:
            response = PlainTextResponse(
                f"{refused.detail}\n", refused.status_code, refused.headers
            )
        response.headers.update(_HEADERS)
        response.headers.setdefault("Content-Security-Policy", _policy(""))
        return response

    app.add_middleware(TrustedHostMiddleware, allowed_hosts=NAMES, www_redirect=False)
    return app


async def check_token(request: Request, token: str) -> None:
    """Raises:
    HTTPException: whoever asks did not show the token.
    """
    shown = await _BASIC(request)
    assert shown is not None
    if not hmac.compare_digest(shown.password.encode(), token.encode()):
        raise _BASIC.make_not_authenticated_error()


async def said_in(request: Request, form: Mapping[str, str]) -> Said:
    """Who decides, and why, by a form or else by the user name that the browser sent.

    Raises:
        ConfigError: as `persons.said_of`.
    """
    shown = await _BASIC(request)
    user = shown.username if shown is not None and shown.username.isprintable() else ""
    by = form.get("by") or ", ".join(filter(None, (user[:100], BY)))
    reason, text = form.get("reason", ""), form.get("text", "")
    return persons.said_of(by, reason, text, agreed=form.get("agreed") == "yes")


async def own_form(request: Request, form_key: str) -> dict[str, str]:
    """The fields of a form of this very page, with a job and a digest.

    Raises:
        HTTPException: it came from elsewhere, or is none.
    """
    origin = request.headers.get("origin")
    if origin != f"http://{request.headers['host']}":
        raise HTTPException(403, "Not from this page.")
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > MOST:
            raise HTTPException(413, "Too long for a form of this page.")
    form = dict(parse_qsl(content.decode("utf-8", "replace")))
    if not hmac.compare_digest(form.get("form_key", "").encode(), form_key.encode()):
        raise HTTPException(403, "A form of an older page. Load the page again.")
    if not form.get("job") or not form.get("digest"):
        raise HTTPException(422, "A form without a job.")
    return form


def _policy(text: str) -> str:
    """A content security policy under which a page may use its own styles, forms, and nothing."""
    styles = (sha256(style.encode()).digest() for style in _STYLE.findall(text))
    hashes = " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in styles)
    return (
        f"default-src {NONE}; style-src {hashes or NONE}; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    )
