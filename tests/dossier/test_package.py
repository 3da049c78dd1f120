"""A dossier's file has one form: whatever else it is, it is refused."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.dossier import package
from fedpriv.dossier.package import MANIFEST, SIGNATURE, pack, read, unpack
from fedpriv.errors import AlteredError, DossierError, SignerError
from tests.dossier.made_runs import COORDINATOR, SITE_KEYS, public
from tests.example_counts import examples

FILES = {"dossier.json": b'{"a": 1}\n', "sites/north/budget.json": b"{}" * 40, "empty.json": b""}
WHOLE = pack(FILES, COORDINATOR)
PATH = Path("a.zip")
many = settings(max_examples=examples(400), deadline=None)
small = st.binary(min_size=1, max_size=40)
places = st.integers(0, len(WHOLE))


def entries() -> list[tuple[zipfile.ZipInfo, bytes]]:
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as archive:
        return [(info, archive.read(info)) for info in archive.infolist()]


def archive_of(found: list[tuple[zipfile.ZipInfo, bytes]], **options: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for info, data in found:
            archive.writestr(info, data, **options)
    return made.getvalue()


def refused(content: bytes) -> str:
    with pytest.raises(AlteredError) as caught:
        unpack(content, PATH)
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_the_same_files_and_key_are_the_same_bytes_and_come_back() -> None:
    assert pack(dict(FILES), COORDINATOR) == WHOLE
    found = unpack(WHOLE, PATH)
    assert (found.signer, found.files) == (public(COORDINATOR), FILES)
    assert list(found.files) == list(FILES)
    assert archive_of(entries()) == WHOLE  # as any reader of zip archives sees it


@many
@given(place=st.integers(0, len(WHOLE) - 1), change=st.integers(1, 255))
def test_any_byte_that_is_altered_is_refused(place: int, change: int) -> None:
    altered = bytearray(WHOLE)
    altered[place] ^= change
    refused(bytes(altered))


def test_every_single_bit_counts() -> None:
    for place in range(0, len(WHOLE), 7 if settings().max_examples < 100 else 1):
        altered = bytearray(WHOLE)
        altered[place] ^= 1 << place % 8
        refused(bytes(altered))


@many
@given(place=places, added=small)
def test_bytes_that_are_added_anywhere_are_refused(place: int, added: bytes) -> None:
    refused(WHOLE[:place] + added + WHOLE[place:])


@many
@given(start=st.integers(0, len(WHOLE) - 1), length=st.integers(1, 200))
def test_bytes_that_are_left_out_anywhere_are_refused(start: int, length: int) -> None:
    refused(WHOLE[:start] + WHOLE[start + length :])


@many
@given(content=st.binary(max_size=300))
def test_what_is_no_archive_is_refused(content: bytes) -> None:
    refused(content)
    refused(b"PK\x03\x04" + content)


def test_what_an_archive_can_have_besides_is_refused() -> None:
    refused(WHOLE[:-2] + b"\x04\x00note")  # a comment
    found = entries()
    refused(archive_of([*found, found[-1]]))  # a name twice
    refused(archive_of([found[1], found[0], *found[2:]]))
    refused(archive_of([*found[:2], found[3], found[2], *found[4:]]))
    refused(archive_of(found[:-1]))
    refused(archive_of([*found, (zipfile.ZipInfo("more.json"), b"{}")]))
    refused(archive_of([]))
    for field, value in (
        ("date_time", (1999, 1, 1, 0, 0, 0)),
        ("comment", b"a note"),
        ("extra", b"\xfe\xca\x02\x00hi"),
        ("external_attr", 0o777 << 16),
        ("create_system", 0),
    ):
        changed = entries()
        setattr(changed[2][0], field, value)
        assert "part of no file" in refused(archive_of(changed))


def test_nothing_grows_when_it_is_unpacked() -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, bytes(64 << 20))
    bomb = made.getvalue()
    assert len(bomb) < 1 << 17
    tracemalloc.start()
    assert "compressed" in refused(bomb)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_files_that_share_their_bytes_are_refused() -> None:
    """Of one stored megabyte, a directory with many names makes many."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a", bytes(1 << 20))
        [first] = archive.infolist()
        for number in range(200):
            copy = zipfile.ZipInfo(f"b{number}", first.date_time)
            for field in ("CRC", "compress_size", "file_size", "header_offset", "create_version"):
                setattr(copy, field, getattr(first, field))
            archive.filelist.append(copy)
    assert "overlap" in refused(made.getvalue())


def test_a_file_larger_than_any_dossier_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.zip"
    path.write_bytes(WHOLE)
    monkeypatch.setattr(package, "MAX_BYTES", len(WHOLE) - 1)
    with pytest.raises(AlteredError, match="No dossier has"):
        read(path)
    with pytest.raises(DossierError, match="more than the"):
        pack(FILES, COORDINATOR)


def test_another_key_is_told_apart() -> None:
    unpack(WHOLE, PATH, public(COORDINATOR).upper())
    with pytest.raises(SignerError, match="not by the expected") as caught:
        unpack(WHOLE, PATH, public(SITE_KEYS["north"]))
    assert caught.value.exit_code == 3
    forged = pack({**FILES, "dossier.json": b'{"a": 2}\n'}, SITE_KEYS["north"])
    with pytest.raises(SignerError):
        unpack(forged, PATH, public(COORDINATOR))


def test_a_signature_of_other_files_is_refused() -> None:
    other = pack({"dossier.json": b"{}"}, COORDINATOR)
    with zipfile.ZipFile(io.BytesIO(other)) as archive:
        signature = archive.read(SIGNATURE)
    found = [(i, signature if i.filename == SIGNATURE else data) for i, data in entries()]
    assert "does not match its signature" in refused(archive_of(found))


def test_a_file_with_other_content_is_refused_whatever_its_checksum() -> None:
    found = [
        (info, data if info.filename == SIGNATURE else data.replace(b"1", b"2"))
        for info, data in entries()
    ]
    assert "does not match its signature" in refused(archive_of(found))
    kept = entries()[:2]
    assert "dossier.json was changed" in refused(archive_of([*kept, *found[2:]]))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DossierError, match=r"no\.zip: can't be read"):
        read(tmp_path / "no.zip")
