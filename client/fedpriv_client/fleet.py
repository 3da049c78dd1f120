"""A client of Flower's fleet API that does not trust the server.

Flower's own client follows redirects and proxies, unpacks into memory whatever is sent, and ends
the process when a server says that the versions differ. This one does none of that.
"""

from __future__ import annotations

import ssl
import time
from contextlib import closing

import httpx

from fedpriv.errors import UnreachableError
from fedpriv.pki.keys import PrivateKey
from fedpriv.proxy import transport_to
from fedpriv_client.flower import FleetCalls

TIMEOUT = 30.0  # seconds without a byte
SLOWEST = 64 << 10  # bytes a second at which an answer's body has to come, after that time
PARTS, SMALLEST = 1000, 256  # pieces in which it may come, and bytes of each further piece
MIB = 1 << 20
_LARGEST = {"PullObject": 8 * MIB}  # bytes of an answer; any other has at most 1 MiB
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")


class FleetClient(FleetCalls):
    """Ask one server, and hold no more of an answer than is needed.

    Args:
        address: host:port.
        tls: what to trust and to show; None speaks plain HTTP, which no proxy may see.
        key: signs every request.

    Raises:
        NetworkError: the environment names a proxy that can't be used.
        UnreachableError: from a call whose answer is too long, packed, too slow, or in tiny pieces.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None, key: PrivateKey) -> None:
        url = f"{'http' if tls is None else 'https'}://{address}"
        way = httpx.HTTPTransport(verify=False) if tls is None else transport_to(url, tls)
        asked = {"accept-encoding": "identity"}
        client = httpx.Client(transport=way, timeout=TIMEOUT, follow_redirects=False, headers=asked)
        self._address = url
        super().__init__(url, key, client)

    def greet(self) -> None:
        """Make a connection and hang up. The server's answer is not read."""
        with self._client.stream("HEAD", self._address):
            pass

    def exchange(self, request: httpx.Request, call: str) -> httpx.Response:
        """Send a request and read its answer, up to the length that an answer to the call may have.

        Raises:
            UnreachableError: the answer is longer than that, packed, in tiny pieces, or too slow.
        """
        limit = _LARGEST.get(call, MIB)
        host = request.url.netloc.decode()
        content, began = bytearray(), time.monotonic()
        with closing(self._client.send(request, stream=True)) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise UnreachableError(f"{host}: answers in an encoding that was not asked for.")
            for count, part in enumerate(response.iter_raw()):
                content += part
                if count > PARTS + len(content) // SMALLEST:
                    raise UnreachableError(f"{host}: answers in pieces that are too small.")
                if len(content) > limit:
                    raise UnreachableError(f"{host}: answers with more than {limit:,} bytes.")
                if time.monotonic() - began > TIMEOUT + len(content) / SLOWEST:
                    raise UnreachableError(f"{host}: answers too slowly.")
        kept = [item for item in response.headers.multi_items() if item[0] not in _OF_THE_WIRE]
        status, whole = response.status_code, bytes(content)
        return httpx.Response(status, headers=kept, content=whole, request=request)
