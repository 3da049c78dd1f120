"""Run the web server around an app, with a port, TLS and a thread of its own."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from fedpriv.config.server import ServerSection
from fedpriv.config.site_file import is_loopback
from fedpriv.errors import ConfigError, EnrolmentError
from fedpriv.pki.certificates import Description, check_certificate, load_certificate
from fedpriv.pki.keys import load_key
from fedpriv_server.connections import PromptProtocol, watch

STARTING = 30.0  # seconds


@dataclass(frozen=True)
class ServerTls:
    """The server's certificate and key, and whether sites have to show a certificate, too.

    Attributes:
        authority: if given, connections without one of its certificates are refused (mutual TLS).
    """

    certificate: Path
    key: Path
    authority: Path | None = None

    @classmethod
    def of(cls, section: ServerSection) -> Self:
        """Return what a federation file says about the server's TLS.

        Raises:
            EnrolmentError: a file is missing.
        """
        pki = section.pki
        for needed in (pki / "server.crt", pki / "server.key", pki / "ca.crt"):
            if not needed.exists():
                fix = "Make it: fedpriv provision federation.toml"
                raise EnrolmentError(f"{needed}: no such file. {fix}")
        authority = pki / "ca.crt" if section.client_certificates else None
        return cls(pki / "server.crt", pki / "server.key", authority)


def checked_certificate(section: ServerSection) -> Description:
    """Return the server's certificate, if it is signed by its authority and valid now.

    Raises:
        EnrolmentError: a file is missing, or the certificate is out of date or for another key.
    """
    tls = ServerTls.of(section)
    return check_certificate(
        load_certificate(tls.certificate),
        load_certificate(section.pki / "ca.crt"),
        use="server",
        path=tls.certificate,
        key=load_key(tls.key).public_key(),
    )


def address_of(section: ServerSection, source: Path, *, plain: bool) -> tuple[str, int]:
    """Return host and port to bind.

    Raises:
        ConfigError: there is no TLS, and the address can be reached from other machines.
    """
    host, _, port = section.bound.rpartition(":")
    host = host.strip("[]")
    if plain:
        host = "127.0.0.1" if section.listen is None else host
        if not is_loopback(f"{host}:{port}"):
            raise ConfigError(
                "without TLS everyone in between can read and change what is sent",
                file=source,
                key="server.listen",
                value=section.listen,
                fix="Leave --plain out, or listen on 127.0.0.1.",
            )
    return host, int(port)


@contextlib.contextmanager
def serving(app: ASGIApp, address: tuple[str, int], tls: ServerTls | None) -> Iterator[int]:
    """Serve `app` while the context lasts, and yield the port.

    Args:
        address: host and port to bind; port 0 takes a free port.
        tls: None means plain HTTP.

    Raises:
        ConfigError: the address can't be bound.
        EnrolmentError: certificate and key do not belong together, or can't be read.
    """
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server(address, backlog=256, family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"can't listen there: {error.strerror if isinstance(error, OSError) else error}",
            key="server.listen",
            value=f"{host}:{port}",
            fix="Is another server running? Name another port.",
        ) from None
    config = uvicorn.Config(
        app,
        http=PromptProtocol,
        loop="fedpriv_server.connections:PromptLoop",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
        ssl_ca_certs=None if tls is None else tls.authority,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls is not None and tls.authority else ssl.CERT_NONE,
    )
    # Connections count as open files. The soft limit is raised, so that they don't use up all.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        listening.close()
        raise EnrolmentError(
            f"{config.ssl_certfile}: can't be used with {config.ssl_keyfile}"
            f" ({error.args[-1]}). Copy both from `pki/` of the same `fedpriv provision`."
        ) from None
    if config.ssl is not None:
        watch(config.ssl)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="web", daemon=True)
    thread.start()
    deadline = time.monotonic() + STARTING
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(STARTING)
        listening.close()
