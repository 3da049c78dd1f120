"""A proxy is named where it fails, and what is advised then helps."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import transformers
from flwr.supernode.fleet_http_client import FleetHttpClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.errors import ModelError, NetworkError, UnreachableError
from fedpriv.models.base import load_tokenizer
from fedpriv.models.config import ModelSection
from fedpriv.pki.keys import new_key
from fedpriv.proxy import proxy_of, through, transport_to
from fedpriv_client.connection import ServerConnection

URL = "https://server.example.org:9092"
VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def refusing() -> Iterator[str]:
    """A proxy that lets nobody through."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    caller, _ = listening.accept()
                except OSError:
                    return
                with caller:
                    caller.recv(1 << 16)
                    caller.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_proxy_is_the_one_of_the_scheme_unless_the_host_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert proxy_of(URL) == ("", "") and through(URL) == ""
    monkeypatch.setenv("ALL_PROXY", "http://all:1")
    assert proxy_of(URL) == ("http://all:1", "ALL_PROXY")
    monkeypatch.setenv("https_proxy", "one:3128")
    assert proxy_of(URL) == ("http://one:3128", "HTTPS_PROXY")
    assert proxy_of("http://server.example.org") == ("http://all:1", "ALL_PROXY")
    for name in ("server.example.org", "example.org", ".example.org", "*"):
        monkeypatch.setenv("NO_PROXY", name)
        assert proxy_of(URL) == ("", "")
    monkeypatch.setenv("NO_PROXY", "other.org")
    assert proxy_of(URL) != ("", "")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(secret=st.from_regex(r"[A-Za-z0-9:%]{6,20}", fullmatch=True))
def test_a_password_of_a_proxy_is_not_shown(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{secret}@one:3128")
    assert through(URL) == " through the proxy http://***@one:3128 of HTTPS_PROXY"


@pytest.mark.parametrize("variable", ["ALL_PROXY", "HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize("proxy", ["socks5h://p:9", "socks5://p:9", "socks4://p:9", "ftp://p:9"])
def test_a_proxy_of_another_kind_is_named_and_the_advice_helps(
    proxy: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        import socksio  # noqa: F401

        pytest.skip("here SOCKS is known")
    except ImportError:
        pass
    monkeypatch.setenv(variable, proxy)
    tls = ssl.create_default_context()
    with pytest.raises(NetworkError) as caught:
        ServerConnection("server.example.org:9092", tls, new_key())
    said = str(caught.value)
    assert f"through the proxy {proxy} of {variable.upper()}" in said
    advice = said.rpartition(": ")[2].rstrip(".")
    name, _, value = advice.partition("=")
    monkeypatch.setenv(name, value)
    ServerConnection("server.example.org:9092", tls, new_key()).close()
    monkeypatch.delenv(name)
    monkeypatch.setenv(variable, "http://p:9")
    transport_to(URL).close()


def test_a_proxy_that_lets_nobody_through_is_named(
    refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
    for proxy in (refusing, closed):
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy}")
        made = ServerConnection("server.example.org:9092", ssl.create_default_context(), new_key())
        with pytest.raises(UnreachableError, match=f"through the proxy http://{proxy} of HTTPS_P"):
            made.connect()
        made.close()


def test_plain_http_on_this_machine_goes_through_no_proxy(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5://p:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://p:9")
    made = ServerConnection(server.address, None, new_key())
    assert made.connect() and made.address == server.address
    made.close()


def test_our_client_has_all_that_flowers_own_has() -> None:
    """It is made without that one's constructor."""
    made = ServerConnection("127.0.0.1:1", None, new_key())
    assert vars(FleetHttpClient("http://127.0.0.1:1")).keys() <= vars(made._client).keys()
    made.close()


@pytest.mark.parametrize("error", [ImportError("no 'socksio'"), OSError("no route")])
def test_a_hub_behind_a_proxy_is_said_to_be(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fails)
    monkeypatch.setenv("ALL_PROXY", "socks5://p:9")
    with pytest.raises(ModelError, match="through the proxy socks5://p:9 of ALL_PROXY"):
        load_tokenizer(ModelSection(name="owner/name"))
