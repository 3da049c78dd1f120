"""Turn away connections that fail to speak TLS, or say nothing, before there is a request."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import time
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


def watch(context: ssl.SSLContext) -> None:
    """Log every handshake of a server's `context` that fails, and tell the other side.

    Anybody who can reach the port can make handshakes fail. So each reason is logged at most once
    a minute.

    asyncio closes the connection without sending the alert that OpenSSL has ready, so the other
    side only sees the server hang up. If the handshake asks to read more before it fails, asyncio
    first sends the alert.
    """
    told: dict[str, float] = {}

    def refused(reason: str) -> None:
        now = time.monotonic()
        if now - told.get(reason, -PAUSE) >= PAUSE:
            told[reason] = now
            log.warning("TLS connections are refused: %s.", reason.replace("_", " ").lower())

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
