"""The health service, asked by the standard client."""

from __future__ import annotations

import socket

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from fedpriv.errors import ConfigError
from fedpriv.health import health_service
from tests.waiting import CEILING, free_port


def test_a_process_serves_when_it_says_so() -> None:
    address = f"127.0.0.1:{free_port()}"
    with health_service(address, "site.health") as say, grpc.insecure_channel(address) as channel:
        stub = HealthStub(channel)

        def ask() -> int:
            return int(
                stub.Check(HealthCheckRequest(), timeout=CEILING, wait_for_ready=True).status
            )

        assert ask() == HealthCheckResponse.NOT_SERVING
        say(True)
        assert ask() == HealthCheckResponse.SERVING
        say(False)
        assert ask() == HealthCheckResponse.NOT_SERVING


def test_without_an_address_nothing_listens() -> None:
    with health_service(None, "site.health") as say:
        say(True)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConfigError, match=address), health_service(address, "site.health"):
            pass
