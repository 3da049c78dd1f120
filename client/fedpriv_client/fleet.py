"""Flower's client of the fleet API, for a server that need not mean well.

Flower's own follows redirects and proxies, unpacks whatever is sent into memory, and ends the
process when a server says that the versions differ. This one does none of that.
"""

from __future__ import annotations

import ssl
import time

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedpriv.errors import UnreachableError

TIMEOUT = 30.0  # seconds without a byte
SLOWEST = 64 << 10  # bytes a second in which the body of an answer has to come, after that
MIB = 1 << 20
_LARGEST = {"PullObject": 8 * MIB}  # bytes of an answer; of any other 1 MiB
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")


class FleetClient(FleetHttpClient):
    """Asks one server, and holds no more of an answer than it needs.

    Args:
        address: host:port.
        tls: what to trust and to show; None speaks plain HTTP, which no proxy may see.
        key: signs every request.

    Raises:
        UnreachableError: from a call whose answer is too long, or packed.
    """

    def __init__(
        self, address: str, tls: ssl.SSLContext | None, key: ec.EllipticCurvePrivateKey
    ) -> None:
        scheme, verify = ("http", False) if tls is None else ("https", tls)
        super().__init__(
            f"{scheme}://{address}",
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
            verify=verify,
        )
        self._client.close()
        versions = RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()
        self._client = httpx.Client(
            verify=verify,
            timeout=TIMEOUT,
            follow_redirects=False,
            trust_env=tls is not None,
            headers={**dict(versions), "accept-encoding": "identity"},
        )

    def _send(self, context: ProtobufRequestContext, *, stream: bool = False) -> httpx.Response:
        (signing,) = self._interceptors
        return signing.intercept(context, self._exchange)

    def _exchange(self, context: ProtobufRequestContext) -> httpx.Response:
        limit = _LARGEST.get(context.rpc_method.rpartition("/")[2], MIB)
        response = self._client.send(context.request, stream=True)
        host = context.request.url.netloc.decode()
        content, began = bytearray(), time.monotonic()
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise UnreachableError(f"{host}: answers in an encoding that was not asked for.")
            for part in response.iter_raw():
                content += part
                if len(content) > limit:
                    raise UnreachableError(f"{host}: answers with more than {limit:,} bytes.")
                if time.monotonic() - began > TIMEOUT + len(content) / SLOWEST:
                    raise UnreachableError(f"{host}: answers too slowly.")
        finally:
            response.close()
        kept = [item for item in response.headers.multi_items() if item[0] not in _OF_THE_WIRE]
        return httpx.Response(
            response.status_code, headers=kept, content=bytes(content), request=context.request
        )
