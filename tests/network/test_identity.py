"""Each side talks to the one it knows and to nobody else, and says why."""

from __future__ import annotations

import contextlib
import re
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI

from fedpriv.errors import EnrolmentError
from fedpriv.pki.certificates import certificate_pem
from fedpriv.pki.keys import load_key, new_key, write_key
from fedpriv_server.authority import Authority, server_certificate
from fedpriv_server.listen import ServerTls, serving
from tests.network.network_federation import Federation
from tests.waiting import wait_until

Totals = tuple[float, float, float, int]
slow = pytest.mark.slow
IDENTITY = 3  # exit code


def tls(folder: Path, authority: Path | None = None) -> ServerTls:
    return ServerTls(folder / "server.crt", folder / "server.key", authority)


def certify(authority: Authority, folder: Path, *names: str, now: datetime | None = None) -> None:
    """Replace a server's certificate; the key stays."""
    key, now = load_key(folder / "server.key").public_key(), now or datetime.now(UTC)
    made = server_certificate(authority.certificate, authority.key, key, names, days=1, now=now)
    (folder / "server.crt").write_bytes(certificate_pem(made))


def another_authority(folder: Path) -> Authority:
    made = Authority.create(
        folder, "test", passphrase=lambda: b"", encrypt=False, now=datetime.now(UTC)
    )
    write_key(folder / "server.key", new_key())
    certify(made, folder, "localhost")
    return made


@contextlib.contextmanager
def impostor(federation: Federation, shown: ServerTls | None) -> Iterator[None]:
    """Somebody who listens where the server should, by the same web server."""
    with serving(FastAPI(), ("127.0.0.1", federation.port), shown):
        yield


def wrong_name(federation: Federation, pki: Path) -> ServerTls:
    certify(federation.authority, pki, "other.example")
    return tls(pki)


def expired(federation: Federation, pki: Path) -> ServerTls:
    certify(federation.authority, pki, "localhost", now=datetime.now(UTC) - timedelta(days=3))
    return tls(pki)


def not_yet(federation: Federation, pki: Path) -> ServerTls:
    certify(federation.authority, pki, "localhost", now=datetime.now(UTC) + timedelta(days=3))
    return tls(pki)


def of_another_federation(federation: Federation, pki: Path) -> ServerTls:
    another_authority(pki / "other")
    return tls(pki / "other")


def without_tls(federation: Federation, pki: Path) -> None:
    return None


def wants_others(federation: Federation, pki: Path) -> ServerTls:
    """A server that lets the sites of another authority in."""
    another_authority(pki / "other")
    return tls(pki, pki / "other" / "ca.crt")


@slow
@pytest.mark.parametrize(
    ("shows", "said", "logged"),
    [
        (wrong_name, "is for another name", "bad certificate"),
        (expired, "has expired", "certificate expired"),
        (not_yet, "is not valid yet", "bad certificate"),
        (
            of_another_federation,
            "not signed by the authority of this site",
            "unknown ca",
        ),
        (without_tls, "does not speak TLS", ""),
        (wants_others, "refuses this site's certificate", "verify"),
    ],
)
def test_a_site_turns_away_from_who_is_not_its_server(
    federation: Federation,
    caplog: pytest.LogCaptureFixture,
    shows: Callable[[Federation, Path], ServerTls | None],
    said: str,
    logged: str,
) -> None:
    shown = shows(federation, federation.folder / "pki")
    with impostor(federation, shown):
        client = federation.client(0)
        assert client.wait() == IDENTITY
        assert said in client.text
        assert logged in caplog.text


@slow
def test_a_site_without_tls_is_told_that_the_server_speaks_it(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    path = federation.site_file(0)
    federation.change(path, "[server]\n", "[server]\nplain = true\n")
    with impostor(federation, tls(federation.folder / "pki")):
        client = federation.client(0)
        wait_until(lambda: "leave server.plain out" in client.text, lambda: client.text)
        assert "http request" in caplog.text


@slow
@pytest.mark.parametrize(
    ("fault", "seconds", "direction"),
    [("clock-ahead", 60, "ahead of"), ("clock-behind", 3600, "behind")],
)
def test_a_clock_that_is_wrong_is_named(
    federation: Federation, fault: str, seconds: int, direction: str
) -> None:
    federation.server()
    federation.until(state="waiting")
    before = time.monotonic()
    client = federation.client(0, fault)
    assert client.wait() == IDENTITY
    said = re.search(rf"this machine's clock is (\d+) s {direction} the server's", client.text)
    assert said is not None, client.text
    # However long a message was under way; and each clock is read in whole seconds.
    assert abs(int(said[1]) - seconds) <= time.monotonic() - before + 2


@slow
def test_a_key_that_is_not_registered_is_refused(federation: Federation) -> None:
    """A site that the file does not name; and one that made itself another key."""
    federation.only(2, needed=1)
    federation.server()
    federation.until(state="waiting")
    stranger = federation.client(2)
    assert stranger.wait() == IDENTITY
    assert "does not know this site's key" in stranger.text
    enrolment = federation.site_file(0).parent
    key = new_key()
    write_key(enrolment / "site.key", key, replace=True)
    thief = federation.client(0)
    assert thief.wait() == IDENTITY  # the enrolment says so before anybody is dialled
    assert "site.crt" in thief.text


@slow
def test_a_revoked_site_is_turned_out_and_stays_out(
    federation: Federation, expected: Totals
) -> None:
    federation.only(2, needed=1)
    server = federation.server()
    federation.client(0, "held")  # so that the job does not end meanwhile
    client = federation.client(1)
    federation.until_paid(1, 2)
    federation.provision("--revoke", "site-1")
    assert client.wait() == IDENTITY
    assert "Site site-1 is no longer admitted" in server.text
    again = federation.client(1)
    assert again.wait() == IDENTITY
    federation.let_go(0)
    assert again.text.count("does not know this site's key") >= 2
    federation.finish(server)
    assert federation.states(0) == ["ok"] * 3
    assert federation.states(1) == ["ok", "ok", "absent"]
    assert federation.totals(0) == expected
    assert federation.totals(1)[3] == 2


@slow
def test_a_site_gets_a_new_key_while_it_works(federation: Federation, expected: Totals) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    federation.client(0, "held")
    client = federation.client(1)
    federation.until_paid(1, 1)
    federation.provision("--renew", "site-1")
    assert client.wait() == IDENTITY
    assert "Site site-1 is no longer admitted" in server.text
    federation.client(1)
    federation.let_go(0)
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected


def test_a_certificate_of_another_key_is_named(tmp_path: Path) -> None:
    """As a renewal leaves them that was stopped between the two."""
    another_authority(tmp_path)
    (tmp_path / "server.key").unlink()
    write_key(tmp_path / "server.key", new_key())
    with (
        pytest.raises(EnrolmentError, match=r"server\.crt: can't be used with .*server\.key"),
        serving(FastAPI(), ("127.0.0.1", 0), tls(tmp_path)),
    ):
        pass


@slow
def test_sites_show_certificates_where_the_server_wants_them(
    federation: Federation, expected: Totals
) -> None:
    import httpx

    federation.only(2, needed=2)
    federation.change(federation.file, "[server]\n", "[server]\nclient_certificates = true\n")
    server = federation.server()
    federation.until(state="waiting")
    trusting = ssl.create_default_context(cafile=federation.folder / "pki" / "ca.crt")
    with pytest.raises(httpx.ReadError, match="certificate required"):
        httpx.get(f"https://localhost:{federation.port}/", verify=trusting)
    wait_until(lambda: "peer did not return a certificate" in server.text)
    federation.client(0)
    federation.client(1)
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected
