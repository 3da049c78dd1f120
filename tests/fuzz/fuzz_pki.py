"""What a coordinator and a site hand to each other: enrolment, request, keys of sites."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from fedpriv.pki.certificates import certificate_pem
from fedpriv.pki.document import read_document, write_document
from fedpriv.pki.enrolment import Manifest, read_enrolment
from fedpriv.pki.keys import private_pem, public_pem
from fedpriv.pki.request import make_request, read_request
from fedpriv_server.authority import (
    authority_certificate,
    new_manifest,
    sign_manifest,
    site_certificate,
)
from fedpriv_server.site_keys import SiteKeys
from tests.fuzz import fuzz_der
from tests.fuzz.fuzz_mutate import json_bytes, mutate_bytes
from tests.fuzz.fuzz_target import Target, packed, parts, raw, refuses

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CA_KEY = ec.derive_private_key(11, ec.SECP256R1())  # keys that guard nothing
SITE_KEY = ec.derive_private_key(12, ec.SECP256R1())
FILES = ("enrolment.json", "ca.crt", "site.crt", "site.key")


@cache
def enrolment() -> dict[str, str]:
    """The parts of an enrolment, as texts."""
    ca = authority_certificate(CA_KEY, "a" * 32, "hearts", days=3650, now=NOW)
    own = site_certificate(ca, CA_KEY, SITE_KEY.public_key(), "cardiology", days=365, now=NOW)
    manifest = new_manifest(
        ca,
        own,
        federation="a" * 32,
        federation_name="hearts",
        address="fed.example.org:8443",
        names=("fed.example.org",),
        now=NOW,
    )
    return {
        "enrolment.json": sign_manifest(manifest, CA_KEY).model_dump_json(indent=2),
        "ca.crt": certificate_pem(ca).decode(),
        "site.crt": certificate_pem(own).decode(),
        "site.key": private_pem(SITE_KEY).decode(),
    }


def read(data: bytes, folder: Path) -> None:
    """An enrolment with other parts; `sealed`, with their digests and a signature over them."""
    found = parts(data, **enrolment(), sealed=False)
    for name in FILES:
        path = folder / name
        path.touch(mode=0o600)
        path.write_bytes(raw(found[name]))
    path = folder / "enrolment.json"
    if found["sealed"]:
        manifest = read_document(path, Manifest, fix="")
        digests = {name: _digest(folder / name) for name in ("ca.crt", "site.crt")}
        write_document(path, sign_manifest(manifest.model_copy(update={"files": digests}), CA_KEY))
    whole = read_enrolment(path, key=folder / "site.key", now=NOW + timedelta(days=1))
    refuses(whole.manifest == read_document(path, Manifest, fix=""), "another manifest")
    pem = public_pem(whole.key.public_key())
    refuses(pem == public_pem(SITE_KEY.public_key()), "another key")


def _digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def mutate_enrolment(data: bytes, random: Random) -> bytes:
    if random.random() < 0.05:
        return mutate_bytes(data, random)
    found = parts(data, **enrolment(), sealed=False)
    name = random.choice(FILES)
    found["sealed"] = found["sealed"] or random.random() < 0.7
    change: Callable[[bytes, Random], bytes] = (
        json_bytes if name == "enrolment.json" else mutate_part
    )
    found[name] = change(raw(found[name]), random).decode("latin-1")
    return packed(**{key: found[key] for key in found if found[key] != enrolment().get(key)})


def mutate_part(pem: bytes, random: Random) -> bytes:
    return fuzz_der.mutate_pem(pem, random, CA_KEY)


def enrolments() -> dict[str, bytes]:
    return {
        "whole": b"{}",
        "sealed": b'{"sealed": true}',
        "sealed-parts": packed(
            **{name: enrolment()[name] for name in ("site.crt", "ca.crt")}, sealed=True
        ),
    }


def request(data: bytes, folder: Path) -> None:
    path = folder / "site.request.pem"
    path.write_bytes(data)
    name, key = read_request(path)
    refuses(isinstance(name, str) and isinstance(key, ec.EllipticCurvePublicKey), "no request")


def site_keys(data: bytes, folder: Path) -> None:
    path = folder / "sites.json"
    path.write_bytes(data)
    found = SiteKeys.read(path)
    found.admissible(NOW)
    keys = [site.public_key for site in found.sites.values() if site.public_key is not None]
    refuses(len(set(keys)) == len(keys), "a key of two sites")
    for site in found.sites.values():
        found.write(site)
    refuses(SiteKeys.read(path).sites == found.sites, "other sites when it is read again")


def sites() -> dict[str, bytes]:
    row: dict[str, Any] = {
        "name": "cardiology",
        "key_made": "here",
        "certificate": enrolment()["site.crt"],
        "revoked": None,
        "retired": ["sha256:" + "b" * 64],
    }
    awaited = {**row, "name": "surgery", "key_made": "site", "certificate": None}
    awaited["revoked"] = "2026-01-01T00:00:00Z"
    return {"two": json.dumps({"format": 1, "sites": [row, awaited]}, indent=1).encode()}


def mutate_sites(data: bytes, random: Random) -> bytes:
    if random.random() < 0.5:
        return json_bytes(data, random)
    try:
        tree = json.loads(data)
        row = random.choice(tree["sites"])
        row["certificate"] = mutate_part(raw(row["certificate"]), random).decode("latin-1")
        return json.dumps(tree).encode()
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return mutate_bytes(data, random)


def mutate_request(data: bytes, random: Random) -> bytes:
    return fuzz_der.mutate_pem(data, random, SITE_KEY)


TARGETS = (
    Target("enrolment", read, enrolments, mutate_enrolment),
    Target(
        "request", request, lambda: {"cardiology": make_request(SITE_KEY, "c" * 10)}, mutate_request
    ),
    Target("site_keys", site_keys, sites, mutate_sites),
)
