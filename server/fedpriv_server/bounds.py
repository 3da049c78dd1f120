"""What a request may take before anybody knows what it says: length, memory, and time.

Memory is bounded for any number of sites: few requests that move an object are read at the
same time, the others wait with their bodies in the network. A stranger gets no place among
them, and a site one.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LARGEST = 8 << 20  # bytes of one request; Flower sends objects of at most 5 MB
SMALL = 1 << 20  # bytes of a request that announces a message, and of any that moves no object
MOVING = 4  # requests that move an object at the same time, one a site
COLLECT = 8  # of them between two collections of garbage
PATIENCE = 120.0  # seconds in which such a request has to be through


class Bounds:
    """Refuses a request that is too long, and lets few move objects at a time.

    Args:
        is_known: whether a public key (PEM) may take part.
    """

    def __init__(self, app: ASGIApp, is_known: Callable[[bytes], bool]) -> None:
        self._app, self._is_known = app, is_known
        self._moving = asyncio.Semaphore(MOVING)
        self._moved = 0
        self._turns: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        moves = scope["path"].endswith("-object")
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > (LARGEST if moves else SMALL):
            await PlainTextResponse("too long", status_code=413)(scope, receive, send)
        elif not moves:
            await self._app(scope, receive, send)
        elif (key := self._signer(headers)) is None:
            await PlainTextResponse("not admitted", status_code=401)(scope, receive, send)
        else:
            async with self._turns[key], self._moving, asyncio.timeout(PATIENCE):
                await self._app(scope, receive, send)
            self._moved += 1
            if self._moved % COLLECT == 0:
                gc.collect()  # a request is a cycle, with its body in it

    def _signer(self, headers: Headers) -> bytes | None:
        """The key that signed a request, if it may take part. Whether it is fresh is seen later."""
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            time = headers[TIMESTAMP_HEADER].encode("ascii")
            signed = self._is_known(key) and verify_signature(
                bytes_to_public_key(key), time, signature
            )
        except (KeyError, ValueError, TypeError):
            return None
        return key if signed else None


def share_heap() -> None:
    """Let all threads allocate from one heap (glibc).

    By default every thread keeps what it has freed for itself, so that a server holds the largest
    objects that each of its threads ever moved.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    m_arena_max = -8
    mallopt(m_arena_max, 1)
