"""`fedpriv-client serve-model`: serve a site model by transformers' server, on this machine only.

Other users of this machine can reach the port, and so can the pages that a browser has open.
Neither has the token that each request must show.

Privacy
    What the model answers is as confidential as the site's records, and so is what it is asked.
    None of it gets into a log (law 16).
"""

from __future__ import annotations

import hmac
import secrets
import socket
from pathlib import Path
from typing import Any
from unittest.mock import patch

import uvicorn
from fastapi.responses import JSONResponse

from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.files import write_atomic
from fedpriv.local_page import HOST, listen_here, quiet
from fedpriv.secret import create_secret, load_secret
from fedpriv.serving.config import SiteModelConfig
from fedpriv.serving.folder import read_site_model

PATHS = ("/health", "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/responses")


def serve_model(folder: Path, port: int, token_file: Path | None) -> None:
    """Serve a site model on this machine until stopped.

    Args:
        port: 0 takes a free one.
        token_file: made if it is missing. None makes a new token for this start, beside the folder.

    Raises:
        ConfigError: there is no site model that writes, the port can't be bound, others may read
            the token, or what transformers' server needs is not installed.
    """
    check_installed()
    check_writes(folder)
    folder = folder.resolve()
    token, shown_in = fresh_token(folder) if token_file is None else read_token(token_file)
    print(f"Requests must show the token that is in {shown_in}.", flush=True)
    with listen_here(port) as listening:
        _serve(folder, listening, token)


def check_installed() -> None:
    """Check that the packages for transformers' server are installed.

    Raises:
        ConfigError: they are not.
    """
    from transformers.utils.import_utils import is_serve_available

    if not is_serve_available():
        fix = "pip install 'fedpriv[serving]', or with the client alone 'fedpriv-site[serving]'."
        raise ConfigError("a package that transformers' server needs is missing", fix=fix)


def check_writes(folder: Path) -> None:
    """Check that a folder holds a site model that writes.

    Raises:
        ConfigError: it does not.
    """
    read_site_model(folder)
    if not SiteModelConfig.from_pretrained(folder).writes:
        problem = "labels texts, and transformers' server is for models that write"
        raise ConfigError(problem, file=folder, fix="Type: fedpriv-client classify")


def fresh_token(folder: Path) -> tuple[str, Path]:
    """Make a token for one start, in a file beside the folder. No job's name begins with a dot."""
    token, path = secrets.token_urlsafe(32), folder.with_name(f".{folder.name}.token")
    write_atomic(path, token, mode=0o600)
    return token, path


def read_token(path: Path) -> tuple[str, Path]:
    """Read the token that requests must show. It is made if there is none.

    Raises:
        ConfigError: it can't be used, or others may read it.
    """
    if not path.exists():
        create_secret(path, secrets.token_urlsafe(32).encode())
    leaked = "If others have read it, delete it: the next start makes another."
    token = load_secret(path, name="token", leaked=leaked, error=ConfigError).decode().strip()
    if not token:
        raise ConfigError("is empty", file=path, fix="Delete it: the next start makes another.")
    return token, path


@without_hub_code()
def _serve(folder: Path, listening: socket.socket, token: str) -> None:
    import torch
    import transformers
    from transformers.cli.serve import Serve

    from fedpriv.serving.model import SiteModelForCausalLM

    class Guarded(uvicorn.Server):
        """Run transformers' server, but ask for the token and log nothing of the requests."""

        def __init__(self, config: uvicorn.Config) -> None:
            app: Any = config.app
            for wrong in (FedprivError, ValueError):  # for bad requests
                app.add_exception_handler(wrong, _refused)
            super().__init__(quiet(Guard(app, token)))

        def run(self, sockets: Any = None) -> None:
            where = f"http://{HOST}:{listening.getsockname()[1]}/v1"
            print(f"{where} serves the model {folder}", flush=True)
            super().run([listening])

    name = SiteModelForCausalLM.__name__  # the server looks for it in transformers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    port = listening.getsockname()[1]  # bound already: no other server could have it
    with (
        patch.object(transformers, name, SiteModelForCausalLM, create=True),
        patch.object(uvicorn, "Server", Guarded),
    ):
        Serve(str(folder), host=HOST, port=port, device=device, log_level="critical")


async def _refused(request: Any, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 400)


class Guard:
    """Allow requests for answers that show the token, and refuse all other requests.

    Transformers' server would also load and unload models.

    Args:
        app: any ASGI application.
    """

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._shown = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        answer, shown = self._app, dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(shown, self._shown):
            headers = {"WWW-Authenticate": "Bearer"}
            answer = JSONResponse({"error": "Show the token."}, 401, headers)
        elif scope["path"] not in PATHS:
            answer = JSONResponse({"error": "This is not served."}, 404)
        await answer(scope, receive, send)
