"""An enrolment is whole, of one federation and of today, or it is refused."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.errors import EnrolmentError
from fedpriv.pki.document import read_document
from fedpriv.pki.enrolment import Enrolment, Manifest, is_signed, read_enrolment
from fedpriv.pki.keys import new_key, private_pem
from fedpriv_server.authority import sign_manifest

from .conftest import NOW, Authority

FILES = ("enrolment.json", "ca.crt", "site.crt", "site.key")
REUSED = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read(folder: Path, **options: Any) -> Enrolment:
    return read_enrolment(folder / "enrolment.json", key=folder / "site.key", **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Path:
    """An enrolment that no test changes."""
    return authority.enrolment(
        tmp_path_factory.mktemp("enrolments") / "cardiology", "cardiology"
    ).parent


@pytest.fixture
def enrolment(tmp_path: Path, whole: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "enrolment")


def test_a_enrolment_is_read_as_it_was_made(whole: Path, authority: Authority) -> None:
    found = read(whole)
    assert found.manifest.site == "cardiology"
    assert found.manifest.federation == authority.federation
    assert found.manifest.address == "fed.example.org:8443"
    assert found.ca == (whole / "ca.crt").read_bytes()
    assert found.certificate == (whole / "site.crt").read_bytes()
    assert private_pem(found.key) == (whole / "site.key").read_bytes()


def test_its_parts_may_lie_elsewhere(enrolment: Path, tmp_path: Path) -> None:
    paths = {name: tmp_path / f"moved-{name}" for name in ("ca.crt", "site.crt", "site.key")}
    for name, path in paths.items():
        (enrolment / name).rename(path)
    found = read_enrolment(
        enrolment / "enrolment.json",
        key=paths["site.key"],
        ca=paths["ca.crt"],
        certificate=paths["site.crt"],
    )
    assert found.manifest.site == "cardiology"


@given(st.sampled_from(FILES), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
@REUSED
def test_a_changed_byte_changes_nothing_or_is_refused(
    enrolment: Path, whole: Path, file: str, where: float, by: int
) -> None:
    original = read(whole)
    content = bytearray((whole / file).read_bytes())
    content[int(where * len(content))] ^= by
    (enrolment / file).write_bytes(content)
    try:
        found = read(enrolment)
    except EnrolmentError as error:
        assert str(enrolment) in str(error)
    else:
        assert found.manifest.model_copy(update={"signature": ""}) == (
            original.manifest.model_copy(update={"signature": ""})
        )
        assert (found.ca, found.certificate) == (original.ca, original.certificate)
        assert found.key.private_numbers() == original.key.private_numbers()
    finally:
        (enrolment / file).write_bytes((whole / file).read_bytes())


@given(st.sampled_from(FILES), st.floats(0, 0.98))
@REUSED
def test_a_file_that_was_cut_short_is_refused(
    enrolment: Path, whole: Path, file: str, where: float
) -> None:
    content = (whole / file).read_bytes()
    (enrolment / file).write_bytes(content[: int(where * len(content))])
    with pytest.raises(EnrolmentError, match=str(enrolment)):
        read(enrolment)
    (enrolment / file).write_bytes(content)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(enrolment: Path, file: str) -> None:
    (enrolment / file).unlink()
    with pytest.raises(EnrolmentError, match=rf"{file}: .*[Nn]o such file"):
        read(enrolment)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("federation", "0" * 32),
        ("federation_name", "lungs"),
        ("site", "radiology"),
        ("address", "evil.example.org:8443"),
        ("names", ["fed.example.org", "127.0.0.1", "evil.example.org"]),
        ("ca", "sha256:" + "0" * 64),
        ("issued", "2020-01-01T00:00:00Z"),
        ("expires", "2099-01-01T00:00:00Z"),
        ("signature", ""),
        ("signature", "00" * 70),
    ],
)
def test_an_edit_of_any_field_is_refused(enrolment: Path, field: str, value: object) -> None:
    path = enrolment / "enrolment.json"
    content = json.loads(path.read_text())
    assert field in content
    path.write_text(json.dumps(content | {field: value}))
    with pytest.raises(
        EnrolmentError, match=r"enrolment\.json: was changed after the coordinator signed it"
    ):
        read(enrolment)


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
def test_every_field_is_under_the_signature(whole: Path, authority: Authority) -> None:
    """Also one that a later version adds."""
    signed = read_document(whole / "enrolment.json", Manifest, fix="")
    assert is_signed(signed, authority.certificate)
    fresh = sign_manifest(signed, new_key())
    assert not is_signed(fresh, authority.certificate)
    for name in Manifest.model_fields.keys() - {"signature"}:
        changed = signed.model_copy(update={name: "other"})
        assert not is_signed(changed, authority.certificate), name


@pytest.mark.parametrize("file", FILES)
def test_files_of_two_federations_are_not_mixed(
    enrolment: Path, tmp_path: Path, other: Authority, file: str
) -> None:
    """They have the same name and the same site."""
    theirs = other.enrolment(tmp_path / "theirs", "cardiology").parent
    shutil.copy(theirs / file, enrolment / file)
    with pytest.raises(
        EnrolmentError, match=r"Copy the whole enrolment again|of the same enrolment"
    ):
        read(enrolment)


@pytest.mark.parametrize("file", ["enrolment.json", "site.crt", "site.key"])
def test_files_of_two_sites_are_not_mixed(
    enrolment: Path, tmp_path: Path, authority: Authority, file: str
) -> None:
    theirs = authority.enrolment(tmp_path / "theirs", "radiology").parent
    shutil.copy(theirs / file, enrolment / file)
    with pytest.raises(
        EnrolmentError, match=r"Copy the whole enrolment again|of the same enrolment"
    ):
        read(enrolment)


def test_a_stranger_cannot_sign_for_the_authority(
    enrolment: Path, authority: Authority, other: Authority
) -> None:
    manifest = read_document(enrolment / "enrolment.json", Manifest, fix="")
    moved = manifest.model_copy(update={"address": "evil.example.org:8443"})
    for key in (other.key, new_key()):
        forged = sign_manifest(moved, key)
        (enrolment / "enrolment.json").write_text(forged.model_dump_json())
        with pytest.raises(EnrolmentError, match="was changed after the coordinator signed it"):
            read(enrolment)
    (enrolment / "enrolment.json").write_text(sign_manifest(moved, authority.key).model_dump_json())
    assert read(enrolment).manifest.address == "evil.example.org:8443"


def test_a_enrolment_ends_with_its_certificate(whole: Path) -> None:
    expires = read(whole).manifest.expires
    assert expires == (NOW + timedelta(days=10)).replace(microsecond=0)
    read(whole, now=expires)
    with pytest.raises(EnrolmentError, match=r"site\.crt: .*expired.*--renew cardiology"):
        read(whole, now=expires + timedelta(seconds=1))
    with pytest.raises(EnrolmentError, match="Set the clock"):
        read(whole, now=NOW - timedelta(days=1))


def test_a_newer_format_asks_for_a_newer_fedpriv(enrolment: Path) -> None:
    path = enrolment / "enrolment.json"
    content = json.loads(path.read_text()) | {"format": 2, "post_quantum": True}
    path.write_text(json.dumps(content))
    with pytest.raises(
        EnrolmentError, match=r"format: input should be 1 .*by another version of fedpriv"
    ):
        read(enrolment)


@pytest.mark.parametrize("content", ["", "[]", "{", "3", '{"format": "1"}', "[" * 100_000])
def test_what_is_no_manifest_is_refused(enrolment: Path, content: str) -> None:
    (enrolment / "enrolment.json").write_text(content)
    with pytest.raises(EnrolmentError, match=r"enrolment\.json: .*Copy the whole enrolment again"):
        read(enrolment)
