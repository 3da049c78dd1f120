"""Who fails to speak TLS with the server is turned away before there is a request to log."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)
PAUSE = 60.0  # seconds between two lines of one reason


class Refusals:
    """Logs why handshakes failed: the first of each reason at once, then how many there were.

    Whoever can reach the port can make them fail, so they must not fill the log.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[str, float] = {}
        self._more: dict[str, int] = {}

    def __call__(self, reason: str) -> None:
        """Count another refused connection, for a reason in OpenSSL's words."""
        with self._lock:
            self._more[reason] = self._more.get(reason, 0) + 1
            now = self._clock()
            if reason in self._told and now - self._told[reason] < PAUSE:
                return
            self._told[reason], count = now, self._more.pop(reason)
        log.warning("%d TLS connections were refused: %s.", count, reason.replace("_", " ").lower())


def watch(context: ssl.SSLContext, refused: Callable[[str], None]) -> None:
    """Tell `refused` of every handshake of a server's `context` that fails, and the other side too.

    asyncio closes the connection without the alert that OpenSSL has ready, and the other side
    sees a server that hangs up. If more is asked for first, asyncio sends what is ready.
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
                if error.reason == "HTTP_REQUEST":  # OpenSSL has nothing to say to that
                    raise
                self.failure = error
                raise ssl.SSLWantReadError from error

    context.sslobject_class = Watched
