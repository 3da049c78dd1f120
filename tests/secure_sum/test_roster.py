"""Who may add up together: what a roster holds, and what is refused as one."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import ConfigError
from fedpriv.privacy.usual import MAX_MEMBERS
from fedpriv.secure_sum.roster import Roster, read, read_entry, write
from tests.secure_sum.secure_sites import roster_of, sites

SITES = sites("b", "a", "C")


def test_it_comes_back_from_its_file_in_the_order_of_names(tmp_path: Path) -> None:
    roster = roster_of(SITES)
    write(tmp_path / "roster.json", roster)
    assert read(tmp_path / "roster.json") == roster
    assert [entry.name for entry in roster.entries] == ["C", "a", "b"]
    assert len(roster) == 3
    assert roster.key_of("b") == SITES[0].entry.public_key
    assert roster.key_of("d") is None


def test_its_digest_is_of_all_that_it_says_whatever_the_order() -> None:
    roster = roster_of(SITES)
    for order in itertools.permutations(SITES):
        assert roster_of(list(order)).digest == roster.digest
    lines = ",".join(
        f'{{"name":"{entry.name}","public_key":"{entry.public_key}"}}' for entry in roster.entries
    )
    text = f'{{"entries":[{lines}],"format":1}}'
    assert roster.digest == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    others = [
        roster_of(SITES[:2]),
        roster_of(sites("b", "a", "C")),
        roster_of([*SITES, *sites("d")]),
    ]
    renamed = SITES[0].entry.model_copy(update={"name": "B"})
    others.append(Roster.of([renamed, *(site.entry for site in SITES[1:])]))
    assert len({roster.digest, *(other.digest for other in others)}) == 5


def test_another_rosters_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    write(path, roster_of(SITES))
    digest = roster_of(SITES).digest
    assert read(path, digest).digest == digest
    other = roster_of(SITES[:2]).digest
    with pytest.raises(ConfigError, match="another roster") as caught:
        read(path, other)
    assert str(path) in str(caught.value) and digest in str(caught.value)
    assert other in str(caught.value)


def test_a_roster_of_one_is_none() -> None:
    for listed in ([], SITES[:1]):
        with pytest.raises(ConfigError, match="of one site hides nothing"):
            roster_of(listed)


def test_a_name_or_a_key_twice_is_refused() -> None:
    first, second, _ = (site.entry for site in SITES)
    with pytest.raises(ConfigError, match="the same name, b"):
        Roster.of([first, second.model_copy(update={"name": "b"})])
    with pytest.raises(ConfigError, match=f"the same key, {first.public_key}"):
        Roster.of([first, second.model_copy(update={"public_key": first.public_key})])


def test_more_sites_than_any_federation_has_are_refused() -> None:
    entry = SITES[0].entry
    listed = [entry.model_copy(update={"name": f"s{index}"}) for index in range(MAX_MEMBERS + 1)]
    with pytest.raises(ConfigError, match=f"at most {MAX_MEMBERS}"):
        Roster.of(listed)


def good() -> dict[str, Any]:
    return roster_of(SITES).model_dump(mode="json")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("entries.0.name", "../x", "entries.0.name: string should match"),
        ("entries.0.name", "x\n", "entries.0.name: string should match"),
        ("entries.0.name", 5, "entries.0.name: input should be a valid string"),
        ("entries.1.public_key", "00" * 32, "entries.1.public_key: is not an Ed25519 public key"),
        ("entries.1.public_key", "ff" * 32, "entries.1.public_key: is not an Ed25519 public key"),
        ("entries.1.public_key", "AB" * 32, "entries.1.public_key: string should match"),
        ("entries.1.public_key", "ab" * 31, "entries.1.public_key: string should match"),
        ("entries.1.epsilon", 1.0, "entries.1.epsilon: unknown key"),
        ("format", 2, "format: input should be 1"),
        ("entries", [], "entries: a sum of one site hides nothing"),
        ("entries", None, "entries: input should be"),
    ],
)
def test_a_damaged_file_is_refused_by_key_and_value(
    key: str, value: object, words: str, tmp_path: Path
) -> None:
    tree = good()
    *way, last = key.split(".")
    place = tree
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]  # type: ignore[index]
    place[last] = value
    path = tmp_path / "roster.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert f"{path}: {words}" in str(caught.value)
    assert repr(value) in str(caught.value)
    assert "Ask for the file again" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_roster_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    path.write_bytes(content)
    for reads in (read, read_entry):
        with pytest.raises(ConfigError, match=r"roster\.json: "):
            reads(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.json: no such file"):
        read(tmp_path / "no.json")
    with pytest.raises(ConfigError, match="can't be read"):
        read_entry(tmp_path)


def test_an_entry_comes_back_from_its_file(tmp_path: Path) -> None:
    entry = SITES[0].entry
    write(tmp_path / "b.roster.json", entry)
    assert read_entry(tmp_path / "b.roster.json") == entry
    assert json.loads((tmp_path / "b.roster.json").read_text()) == {
        "name": "b",
        "public_key": entry.public_key,
    }
    with pytest.raises(ConfigError, match="public_key: is missing"):
        (tmp_path / "c.json").write_text('{"name": "c"}')
        read_entry(tmp_path / "c.json")
