"""The keys of sites: who may take part, as the file says it now."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.errors import EnrolmentError
from fedpriv.pki.keys import PublicKey, new_key, public_pem
from fedpriv_server.authority import authority_certificate, site_certificate
from fedpriv_server.site_keys import Site, SiteKeys

NOW = datetime.now(UTC).replace(microsecond=0)
CA_KEY = new_key()
CA = authority_certificate(CA_KEY, "a" * 32, "hearts", days=100, now=NOW)


def site(name: str, key: PublicKey | None = None, days: int = 10) -> Site:
    public = key or new_key().public_key()
    certificate = site_certificate(CA, CA_KEY, public, name, days=days, now=NOW)
    return Site(name=name, key_made="here", certificate=certificate)


def changed(site: Site, **changes: Any) -> Site:
    return site.model_copy(update=changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sites.json"


def admitted(site_keys: SiteKeys, now: datetime = NOW) -> list[str]:
    return [site.name for site in site_keys.admissible(now)]


def test_a_key_has_the_bytes_by_which_flower_knows_a_node() -> None:
    key = new_key().public_key()
    assert public_pem(key) == public_key_to_bytes(key)
    assert site("a", key).public_key == public_key_to_bytes(key)


def test_what_was_written_is_read(path: Path) -> None:
    made = [site("a"), changed(site("b"), revoked=NOW), Site(name="c", key_made="site")]
    made.append(site("d", days=2))
    retired = changed(made[0], retired=("sha256:" + "0" * 64,))
    SiteKeys(path).write(retired, *made[1:])
    found = SiteKeys.read(path)
    assert found.sites["a"] == retired
    assert list(found.sites) == ["a", "b", "c", "d"]
    assert {name: one.status(NOW) for name, one in found.sites.items()} == {
        "a": "active",
        "b": "revoked",
        "c": "waiting",
        "d": "active",
    }
    assert admitted(found) == ["a", "d"]
    assert admitted(found, NOW + timedelta(days=5)) == ["a"]
    assert admitted(found, NOW + timedelta(days=11)) == []


def test_a_running_server_sees_a_revocation(path: Path) -> None:
    coordinator = SiteKeys(path)
    coordinator.write(site("a"), site("b"))
    server = SiteKeys.read(path)
    assert not server.reload_if_changed()
    coordinator.write(changed(coordinator.sites["a"], revoked=NOW))
    assert admitted(server) == ["a", "b"]
    assert server.reload_if_changed()
    assert admitted(server) == ["b"]
    assert not server.reload_if_changed()


def test_a_file_that_is_damaged_or_gone_changes_nothing_in_a_running_server(path: Path) -> None:
    SiteKeys(path).write(site("a"))
    server = SiteKeys.read(path)
    path.write_text("{")
    with pytest.raises(EnrolmentError, match=r"sites\.json: is not JSON"):
        server.reload_if_changed()
    path.unlink()
    with pytest.raises(EnrolmentError, match=r"sites\.json: can't be read"):
        server.reload_if_changed()
    assert admitted(server) == ["a"]


def test_no_two_sites_have_one_key_and_none_a_retired_one(path: Path) -> None:
    key = new_key().public_key()
    site_keys = SiteKeys(path)
    site_keys.write(site("a", key))
    with pytest.raises(EnrolmentError, match=r"has the key .* of another site"):
        site_keys.write(site("b", key))
    fingerprint = site_keys.sites["a"].fingerprint
    assert fingerprint is not None
    site_keys.write(changed(site("a"), retired=(fingerprint,)))
    for name in ("a", "b"):
        with pytest.raises(EnrolmentError, match="was retired"):
            site_keys.write(changed(site(name, key), retired=site_keys.sites["a"].retired))
    assert admitted(SiteKeys.read(path)) == ["a"]


def test_a_file_that_contradicts_itself_is_refused(path: Path) -> None:
    SiteKeys(path).write(site("a"), site("b"))
    rows = json.loads(path.read_text())["sites"]
    others = rows[0] | {"certificate": rows[1]["certificate"]}
    cases = {
        "holds site 'a' twice": [rows[0], rows[0]],
        "the certificate of site 'a' is for 'b'": [others],
        "is not a certificate": [rows[0] | {"certificate": rows[0]["certificate"][:90]}],
        "sites.0.key_made": [rows[0] | {"key_made": "elsewhere"}],
        "sites.0.extra": [rows[0] | {"extra": 1}],
    }
    for words, rows in cases.items():
        path.write_text(json.dumps({"format": 1, "sites": rows}))
        with pytest.raises(EnrolmentError, match=words):
            SiteKeys.read(path)
    path.write_text(json.dumps({"format": 2}))
    with pytest.raises(EnrolmentError, match="format: input should be 1"):
        SiteKeys.read(path)


@given(st.floats(0, 0.99))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_was_cut_short_is_refused(path: Path, where: float) -> None:
    SiteKeys(path).write(site("a"), site("b"))
    content = path.read_bytes().rstrip()
    path.write_bytes(content[: int(where * len(content))])
    with pytest.raises(EnrolmentError, match=r"sites\.json"):
        SiteKeys.read(path)
