"""The standard gRPC health service, for tools that watch a process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from fedpriv.errors import ConfigError


@contextlib.contextmanager
def health_service(address: str | None, key: str) -> Iterator[Callable[[bool], None]]:
    """Serve grpc.health.v1 at `address` while the context lasts; if that is None, do nothing.

    It yields a function that sets whether the process serves; before its first call, it does not.
    The service says SERVING or NOT_SERVING, and nothing else.

    Args:
        key: where the address is set, for the error message.

    Raises:
        ConfigError: the address can't be bound.
    """
    if address is None:
        yield lambda serving: None
        return
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from grpc_health.v1 import health_pb2_grpc
    from grpc_health.v1.health import HealthServicer
    from grpc_health.v1.health_pb2 import HealthCheckResponse

    servicer = HealthServicer()
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    try:
        server.add_insecure_port(address)
    except RuntimeError:
        raise ConfigError(
            "can't listen there", key=key, value=address, fix="Name another port."
        ) from None

    def say(serving: bool) -> None:
        known = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        servicer.set("", known)

    say(False)
    server.start()
    try:
        yield say
    finally:
        servicer.enter_graceful_shutdown()
        server.stop(grace=None)
