"""Connections on which somebody speaks: the others are closed, for each takes a place."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvloop import Loop

RESERVE = 256  # files that connections leave for everything else
HEADS = 10.0  # seconds for a handshake, and for a request's head once it is its turn


class PromptLoop(Loop):
    """An event loop whose servers wait for TLS as long as for the rest, not for a minute."""

    async def create_server(  # type: ignore[override]
        self, *args: Any, **options: Any
    ) -> asyncio.AbstractServer:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEADS
        return await super().create_server(*args, **options)


class PromptProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """Uvicorn's, which waits for the end of a head forever, and for any number of them."""

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
