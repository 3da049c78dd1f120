"""Bounds on a request's length, memory and time before its content is known.

A request is heard only if an admitted site signed it, just now and for the first time. Of other
requests not even the body is read. Memory is bounded for any number of sites: only a few requests
that move an object are read at the same time. The others wait, with their bodies in the network.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections import defaultdict, deque
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedpriv_server.flower.requests import SIGNATURE_LIFE, Signature
from fedpriv_server.upload import LARGE

LARGEST = {  # most bytes of each kind of request; no other kinds are answered
    "/v1/fleet/activate-node": 4 << 10,
    "/v1/fleet/deactivate-node": 4 << 10,
    "/v1/fleet/pull-messages": 4 << 10,
    "/v1/fleet/pull-object": 4 << 10,
    "/v1/fleet/confirm-message-received": 4 << 10,
    "/v1/fleet/push-messages": 1 << 20,
    "/v1/fleet/push-object": 8 << 20,  # Flower sends objects of at most 5 MB
}
OPEN = 8  # requests of one site at the same time; it needs three
MOVING = 4  # requests that move an object at the same time, at most one for each site
COLLECT = 64 << 20  # bytes of objects between two collections of garbage
PATIENCE = 120.0  # seconds in which a request that moves an object has to end
PROMPTNESS = 10.0  # seconds in which such a body has to begin, and any other has to be there
LONGEST_TIME = 40  # characters of a signed time


class Bounds:
    """Refuses unknown signers and requests that are too long. Only a few move objects at a time.

    Args:
        is_known: tells whether the holder of a public key (PEM) may take part.
    """

    def __init__(self, app: ASGIApp, is_known: Callable[[bytes], bool]) -> None:
        self._app, self._is_known = app, is_known
        self._replays = Replays(SIGNATURE_LIFE)
        self._moving = asyncio.Semaphore(MOVING)
        self._moved = 0
        self._turns: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._open: defaultdict[bytes, int] = defaultdict(int)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        largest = LARGEST.get(scope["path"]) if scope["method"] == "POST" else None
        if largest is None:
            await PlainTextResponse("no such thing here", 404)(scope, receive, send)
        elif not length.isdecimal() or len(length) > 9 or int(length) > largest:
            await PlainTextResponse("too long", 413)(scope, receive, send)
        elif (signed := self._signature(headers)) is None:
            await PlainTextResponse("not admitted", 401)(scope, receive, send)
        elif not self._replays.is_first(signed.key, signed.time):
            await PlainTextResponse("once only", 409)(scope, receive, send)
        elif self._open[signed.key] >= OPEN:
            await PlainTextResponse("too many at once", 429)(scope, receive, send)
        else:
            self._open[signed.key] += 1
            try:
                await self._hear(signed.key, int(length), scope, receive, send)
            finally:
                self._open[signed.key] -= 1

    async def _hear(
        self, key: bytes, length: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        moves = scope["path"].endswith("-object") or length > LARGE
        try:
            async with asyncio.timeout(PROMPTNESS):
                body = await (receive() if moves else _body(receive))
        except TimeoutError:
            await PlainTextResponse("too slow", 408)(scope, receive, send)
            return
        receive = _after(body, receive)
        self._count(length)
        if not moves:
            await self._app(scope, receive, send)
        else:
            async with self._turns[key], self._moving, asyncio.timeout(PATIENCE):
                await self._app(scope, receive, _to_the_end(send, self._count))
        if self._moved >= COLLECT:
            self._moved = 0
            gc.collect()  # a request is a cycle of references that holds its body

    def _count(self, moved: int) -> None:
        self._moved += moved

    def _signature(self, headers: Headers) -> Signature | None:
        """Return the signature if its signer may take part and signed just now; else None."""
        try:
            found = Signature.of(headers)
            is_heard = (
                self._is_known(found.key)
                and len(found.time) <= LONGEST_TIME
                and found.is_fresh()
                and found.is_genuine()
            )
        except (KeyError, ValueError, TypeError):
            return None
        return found if is_heard else None


class Replays:
    """Remembers signatures for as long as they would count. Use it from one thread only.

    Flower signs the time of a request, to the microsecond, so that time is what is remembered.
    Ask only about admitted keys and times that they signed. Nothing else is worth remembering.

    Args:
        window: the most seconds from when a signature is first seen until it is too old.
    """

    def __init__(self, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window, self._clock = window, clock
        self._seen: set[bytes] = set()
        self._ages: deque[tuple[float, bytes]] = deque()  # oldest first

    def is_first(self, public_key: bytes, timestamp: str) -> bool:
        """Tell whether this is the first request with that key and time."""
        now = self._clock()
        while self._ages and now - self._ages[0][0] > self._window:
            self._seen.remove(self._ages.popleft()[1])
        digest = hashlib.sha256(public_key + timestamp.encode()).digest()
        if digest in self._seen:
            return False
        self._seen.add(digest)
        self._ages.append((now, digest))
        return True


async def _body(receive: Receive) -> Message:
    """Read a request's whole body as one event, or return the event that the sender is gone."""
    parts = []
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return event
        parts.append(event.get("body", b""))
        if not event.get("more_body", False):
            return {"type": "http.request", "body": b"".join(parts), "more_body": False}


def _after(event: Message, receive: Receive) -> Receive:
    """Return a `receive` that first gives an event that has already come, then the next ones."""
    events = [event]

    async def receive_next() -> Message:
        return events.pop() if events else await receive()

    return receive_next


def _to_the_end(send: Send, count: Callable[[int], None]) -> Send:
    """Return a `send` that returns only when the network has taken the body, too.

    A web server waits for what it has written before it writes more. So an empty end follows.

    Args:
        count: called with the bytes of each body.
    """

    async def send_all(event: Message) -> None:
        if event["type"] == "http.response.body":
            count(len(event.get("body", b"")))
            if not event.get("more_body", False):
                await send({**event, "more_body": True})
                event = {"type": "http.response.body", "body": b"", "more_body": False}
        await send(event)

    return send_all
