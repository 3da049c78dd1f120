"""What takes notices of a site, on this machine."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "a-token-in-the-url"


class Webhook:
    """What takes notices, on this machine: at once, or not before it is let go."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.asked, self.free = threading.Event(), threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.asked.set()
                hook.free.wait()
                content = self.rfile.read(int(self.headers["content-length"]))
                hook.taken.append(json.loads(content))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self._server.server_port}/{SECRET}?rto=60"

    def close(self) -> None:
        self.free.set()
        self._server.shutdown()
        self._server.server_close()
