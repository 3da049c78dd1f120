"""Turn away connections that fail to speak TLS, or say nothing, before there is a request."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvloop import Loop

log = logging.getLogger(__name__)
PAUSE = 60.0  # seconds between two log lines for the same reason
RESERVE = 256  # open files that connections leave for everything else
HEADS = 10.0  # seconds for a handshake, and for a request's head once it is its turn


class PromptLoop(Loop):
    """An event loop whose servers wait `HEADS` seconds for a TLS handshake, not a minute."""

    async def create_server(  # type: ignore[override]
        self, *args: Any, **options: Any
    ) -> asyncio.AbstractServer:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEADS
        return await super().create_server(*args, **options)


class PromptProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """Uvicorn's protocol with limits. Uvicorn itself waits forever, and for any number of heads."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > files - RESERVE:
            transport.abort()
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_between_requests():
            self._expect_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEADS, self._hang_up)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _hang_up(self) -> None:
        self._late = None
        if self._is_between_requests():
            self.transport.close()

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete


class Refusals:
    """Logs why handshakes failed: the first of each reason at once, later ones as a count.

    Anybody who can reach the port can make handshakes fail, so they must not fill the log.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}
        self._more: dict[str, int] = {}

    def __call__(self, reason: str) -> None:
        """Count one more refused connection, with the reason in OpenSSL's words."""
        with self._lock:
            self._more[reason] = self._more.get(reason, 0) + 1
            now = self._clock()
            if reason in self._told and now - self._told[reason] < PAUSE:
                return
            self._told[reason], count = now, self._more.pop(reason)
        log.warning("%d TLS connections were refused: %s.", count, reason.replace("_", " ").lower())


def watch(context: ssl.SSLContext, refused: Callable[[str], None]) -> None:
    """Tell `refused` and the other side of every handshake of a server's `context` that fails.

    asyncio closes the connection without sending the alert that OpenSSL has ready, so the other
    side only sees the server hang up. If the handshake asks to read more before it fails, asyncio
    first sends the alert.
    """

    class Watched(ssl.SSLObject):
        failure: ssl.SSLError | None = None

        def do_handshake(self) -> None:
            if self.failure is not None:
                raise self.failure
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                refused(error.reason or "unknown")
                if error.reason == "HTTP_REQUEST":  # OpenSSL has no alert for that
                    raise
                self.failure = error
                raise ssl.SSLWantReadError from error

    context.sslobject_class = Watched
