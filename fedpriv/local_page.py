"""Serve a page at a port of this machine, to people who have its token.

Other users of this machine can reach the port, but they have no token. Pages that are open in a
browser can reach it, too. If such a page's name was bound anew to this machine (DNS rebinding), its
requests are known by the Host that they ask for.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.security import HTTPBasic
from starlette.middleware.trustedhost import TrustedHostMiddleware

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.files import private_folder, write_atomic

HOST = "127.0.0.1"
NAMES = [HOST, "localhost"]  # names under which a browser may ask for it
NONE = "'none'"
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_BASIC = HTTPBasic(realm="a page of fedpriv", auto_error=True)
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def serve_locally(make: Callable[[str], FastAPI], folder: Path, port: int) -> None:
    """Serve a page on this machine until stopped.

    Args:
        make: makes the app, which is open to people with the given token.
        folder: the folder in which the token is written.
        port: 0 takes a free one.

    Raises:
        ConfigError: the port can't be bound.
    """
    with listen_here(port) as listening:  # first, so that a failure replaces no token
        token, path = new_token(folder)
        where = f"http://{HOST}:{listening.getsockname()[1]}/"
        print(f"{where}\nAny user name; the password is what is in {path}.", flush=True)
        uvicorn.Server(quiet(make(token))).run([listening])


def quiet(app: Any) -> uvicorn.Config:
    """Return the settings that serve an ASGI application without logging its requests."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )


def listen_here(port: int) -> socket.socket:
    """Listen to this machine alone.

    Raises:
        ConfigError: the port can't be bound.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        problem = f"can't listen there: {error.strerror}"
        fix = "Is it served already? Name another port."
        raise ConfigError(problem, key="--port", value=port, fix=fix) from None


def new_token(folder: Path) -> tuple[str, Path]:
    """Make a token for one start of the page, and its file (0600).

    While the page is not served, another user of the machine may listen at its port, and a browser
    may send the password that it knows there. So each start has a new password.
    """
    token, path = secrets.token_urlsafe(32), private_folder(folder) / "page.token"
    write_atomic(path, token, mode=0o600)
    return token, path


def local_app(token: str) -> FastAPI:
    """Make an app without a page yet, which answers only requests with the token.

    Args:
        token: the password; any user name will do.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.exception_handler(FedprivError)
    async def wrong(request: Request, error: Exception) -> Response:
        of_a_form = isinstance(error, ConfigError) and error.file is None
        return PlainTextResponse(f"{error}\n", 422 if of_a_form else 503)

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
    """Raise HTTPException if the request does not show the token."""
    shown = await _BASIC(request)
    assert shown is not None
    if not hmac.compare_digest(shown.password.encode(), token.encode()):
        raise _BASIC.make_not_authenticated_error()


async def user_of(request: Request) -> str:
    """Return the user name that a browser sent, if it can be shown."""
    shown = await _BASIC(request)
    return shown.username[:100] if shown is not None and shown.username.isprintable() else ""


def html(text: str) -> HTMLResponse:
    """Answer with a page that may use its own styles and forms, and load nothing."""
    return HTMLResponse(text, headers={"Content-Security-Policy": _policy(text)})


def _policy(text: str) -> str:
    """Return a content security policy that allows a page only its own styles and forms."""
    styles = (sha256(style.encode()).digest() for style in _STYLE.findall(text))
    hashes = " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in styles)
    return (
        f"default-src {NONE}; style-src {hashes or NONE}; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    )
