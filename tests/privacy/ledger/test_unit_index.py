"""The index of units: one ledger for each, known by tags alone, whole after a crash."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import LedgerCorruptError, LedgerError, LedgerInUseError, OverlapError
from fedpriv.privacy.ledger import unit_index as units
from fedpriv.privacy.ledger.unit_index import ID, Identity, UnitIndex
from tests.example_counts import examples

OWN, OTHER = "a" * 32, "b" * 32


def by_id(name: str) -> Identity:
    return Identity(ID, name.encode())


def by_text(text: str, field: str = "text") -> Identity:
    return Identity(field, text.encode())


def of(*names: str) -> list[list[Identity]]:
    """Units with one identity each."""
    return [[by_id(name)] for name in names]


def tags(folder: Path) -> set[bytes]:
    with sqlite3.connect(folder / "units.db") as connection:
        found = {tag for (tag,) in connection.execute("SELECT tag FROM units")}
    connection.close()
    return found


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.sets(st.integers(0, 9), max_size=5)), max_size=8)
)
def test_a_unit_belongs_to_the_first_that_claimed_it(
    tmp_path_factory: pytest.TempPathFactory, claims: list[tuple[str, set[int]]]
) -> None:
    """A model of the index in a dict."""
    index, owner = UnitIndex(tmp_path_factory.mktemp("site")), dict[int, str]()
    for dataset_id, members in claims:
        wanted = of(*map(str, members))
        if any(owner.get(member, dataset_id) != dataset_id for member in members):
            before = tags(index.path.parent)
            with pytest.raises(OverlapError):
                index.claim(dataset_id, wanted)
            assert tags(index.path.parent) == before
        else:
            index.claim(dataset_id, wanted)
            owner |= dict.fromkeys(members, dataset_id)
            assert len(tags(index.path.parent)) == len(owner) + 1  # and the key's own


def test_the_refusal_says_by_what_units_match_and_names_nobody(tmp_path: Path) -> None:
    index = UnitIndex(tmp_path)
    jones, smith = by_id("jones"), by_id("smith")
    index.claim(
        OWN, [[jones, by_text("note 1")], [jones, by_text("note 2")], [smith, by_text("note 3")]]
    )
    index.claim(OTHER, of("miller"))
    mixed = [
        [jones, by_text("note 1")],
        [jones, by_text("note 2")],
        [by_id("taylor"), by_text("note 3", "completion")],
        [by_id("brown"), by_text("note 3", "completion")],
        [by_id("miller")],
        [by_id("nobody yet")],
    ]
    with pytest.raises(OverlapError) as caught:
        index.claim("c" * 32, mixed)
    message = str(caught.value)
    assert (
        f"3 with the ledger of data set {OWN}: 2 by completion, 1 different; 1 by id; 1 by text, 2"
        f" different, 1 with the ledger of data set {OTHER}: 1 by id." in message
    )
    assert not any(word in message for word in ("jones", "miller", "note 1", "note 3"))
    assert caught.value.code == "overlap"


def code_of(index: UnitIndex, dataset_id: str, units: list[list[Identity]]) -> tuple[str, str]:
    """The other data set and the code that a refusal shows."""
    with pytest.raises(OverlapError) as caught:
        index.claim(dataset_id, units)
    found = re.search(r"--from (\w+) --matches (\w+) ", str(caught.value))
    assert found is not None
    return found[1], found[2]


def test_look_alikes_are_accepted_when_somebody_says_that_they_are_others(tmp_path: Path) -> None:
    index = UnitIndex(tmp_path)
    index.claim(OWN, [[by_text("Nothing abnormal.")], [by_text("Fever.")]])
    wanted = [[by_text("Nothing abnormal.")], [by_text("Cough.")]]
    other, code = code_of(index, OTHER, wanted)
    assert other == OWN
    index.accept(OTHER, OWN, code, "Dr Grey")
    for _ in "ab":
        assert index.claim(OTHER, wanted) == [(OWN, "Dr Grey")]
    # It was of those matches, for this ledger: nobody who looks alike later is among them.
    _, later = code_of(index, OTHER, [*wanted, [by_text("Fever.")]])
    assert later != code
    code_of(index, "c" * 32, [[by_text("Nothing abnormal.")]])
    # And what is both ledgers' is no news to the first, whose claim rests on the statement, too.
    assert index.claim(OWN, [[by_text("Nothing abnormal.")]]) == [(OTHER, "Dr Grey")]


def test_another_person_with_the_same_text_is_refused_again(tmp_path: Path) -> None:
    """What was stated is of persons, and not of a text for ever."""
    index, note = UnitIndex(tmp_path), by_text("Nothing abnormal.")
    index.claim(OWN, [[by_id("1"), note]])
    wanted = [[by_id("2"), note]]
    index.accept(OTHER, *code_of(index, OTHER, wanted), "Dr Grey")
    index.claim(OTHER, wanted)
    code_of(index, OTHER, [*wanted, [by_id("3"), note]])
    code_of(index, OTHER, [*wanted, [note]])
    code_of(index, OWN, [[by_id("4"), note]])


def test_a_text_of_many_units_names_nobody(tmp_path: Path) -> None:
    """A prompt that is the same for all; but not a text that a few have."""
    index, prompt = UnitIndex(tmp_path), by_text("Summarise the note.", "prompt")
    index.claim(OWN, [[prompt, by_text(f"fever {i}")] for i in range(30)])
    index.claim(OTHER, [[prompt, by_text(f"cough {i}")] for i in range(30)])
    with pytest.raises(OverlapError, match="2 with the ledger"):
        index.claim("c" * 32, [[prompt, by_text(f"cough {i}")] for i in (3, 4, 40, 41)])
    with pytest.raises(OverlapError, match="30 with the ledger"):  # a file that holds all twice
        index.claim("c" * 32, [[prompt, by_text(f"cough {i % 30}")] for i in range(60)])


def test_only_what_a_refusal_showed_can_be_stated(tmp_path: Path) -> None:
    index = UnitIndex(tmp_path)
    index.claim(OWN, of("x", "y"))
    other, code = code_of(index, OTHER, of("x"))
    for wrong in ((OTHER, other, "0" * 12), (OTHER, "c" * 32, code), ("c" * 32, other, code)):
        with pytest.raises(LedgerError, match="as the refusal shows them"):
            index.accept(*wrong, "Dr Grey")
    code_of(index, OTHER, of("x"))


def test_a_code_is_of_these_matches_and_this_site(tmp_path: Path) -> None:
    codes = set()
    for folder, names in (("a", "xy"), ("a", "x"), ("b", "xy")):
        index = UnitIndex(tmp_path / folder)
        index.claim(OWN, of("x", "y", "z"))
        codes.add(code_of(index, OTHER, of(*names))[1])
    assert len(codes) == 3
    with pytest.raises(LedgerCorruptError, match="is missing"):
        UnitIndex(tmp_path / "none").accept(OTHER, OWN, "0" * 12, "Dr Grey")


def test_a_name_in_a_data_set_id_is_no_statement(tmp_path: Path) -> None:
    index = UnitIndex(tmp_path)
    index.claim("it's", of("x"))
    index.claim("it's", of("x", "y"))
    with pytest.raises(OverlapError, match="1 with the ledger of data set it's"):
        index.claim("'); DROP TABLE units; --", of("x"))
    index.claim("it's", of("x"))


def test_a_unit_that_left_the_data_stays_paid_for(tmp_path: Path) -> None:
    UnitIndex(tmp_path).claim(OWN, of("jones", "smith"))
    UnitIndex(tmp_path).claim(OWN, of("smith", "miller"))
    with pytest.raises(OverlapError, match="1 with"):
        UnitIndex(tmp_path).claim(OTHER, of("jones"))
    with sqlite3.connect(tmp_path / "units.db") as connection:
        for statement in ("DELETE FROM units", "UPDATE units SET dataset_id = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
    connection.close()


def test_the_files_tell_nobody_who_is_in_them(tmp_path: Path) -> None:
    """Not in clear, not as a plain hash, and not by comparing two sites."""
    names = [f"patient {i}, Mrs Jones of {i} High Street" for i in range(50)]
    sites = [tmp_path / name for name in ("one", "two")]
    for site in sites:
        UnitIndex(site).claim(OWN, of(*names))
        assert {path.name for path in site.iterdir()} == {"units.db", "units.key"}
        for path in site.iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
            assert b"Jones" not in path.read_bytes()
            assert b"patient" not in path.read_bytes()
    assert len(tags(sites[0])) == 51
    assert not tags(sites[0]) & tags(sites[1])
    assert all(len(tag) == 16 for tag in tags(sites[0]))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    index = UnitIndex(tmp_path)
    index.claim(OWN, of("jones"))
    index.key_path.chmod(mode)
    before = tags(tmp_path)
    with pytest.raises(LedgerError, match="chmod 600"):
        index.claim(OWN, of("smith"))
    assert tags(tmp_path) == before


@pytest.mark.parametrize("damage", ["key lost", "key cut", "key of another", "index lost", "empty"])
def test_an_index_and_its_key_belong_together(tmp_path: Path, damage: str) -> None:
    index = UnitIndex(tmp_path / "site")
    index.claim(OWN, of("jones"))
    if damage == "key lost":
        index.key_path.unlink()
    elif damage == "key cut":
        os.truncate(index.key_path, 16)
    elif damage == "key of another":
        UnitIndex(tmp_path / "other").claim(OWN, of("jones"))
        shutil.copy(tmp_path / "other" / "units.key", index.key_path)
    elif damage == "index lost":
        index.path.unlink()
    else:
        os.truncate(index.path, 0)
    left = {path.name for path in index.path.parent.iterdir()}
    for _ in "ab":  # nor is it made anew by trying
        with pytest.raises(LedgerCorruptError, match=r"Restore the newest copy of both"):
            index.claim(OTHER, of("jones"))
    assert {path.name for path in index.path.parent.iterdir()} == left


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    index = UnitIndex(tmp_path)
    index.path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(LedgerCorruptError, match="can't be read as an index"):
        index.claim(OWN, of("jones"))
    index.path.unlink()
    with sqlite3.connect(index.path) as connection:
        connection.execute("CREATE TABLE units (tag, dataset_id)")
    connection.close()
    with pytest.raises(LedgerCorruptError, match="is no index of units"):
        index.claim(OWN, of("jones"))
    assert not index.key_path.exists()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    UnitIndex(tmp_path).claim(OWN, of("jones"))
    with sqlite3.connect(tmp_path / "units.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LedgerError, match="format 99"):
        UnitIndex(tmp_path).claim(OWN, of("jones"))


def test_a_damaged_page_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    """Else the units on it would be free to be claimed again."""
    index = UnitIndex(tmp_path)
    index.claim(OWN, of(*map(str, range(2000))))
    whole, page = index.path.read_bytes(), 4096
    assert len(whole) > 8 * page
    for start in range(0, len(whole), page):
        index.path.write_bytes(whole[:start] + b"\x5a" * page + whole[start + page :])
        with pytest.raises(LedgerCorruptError):
            index.claim(OTHER, of("somebody"))
    index.path.write_bytes(whole)
    index.claim(OWN, of("somebody"))


def test_a_full_disk_claims_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = UnitIndex(tmp_path)
    index.claim(OWN, of("jones"))
    plain = units._connect

    def small(path: Path) -> sqlite3.Connection:
        connection = plain(path)
        connection.execute("PRAGMA max_page_count = 8")
        return connection

    monkeypatch.setattr(units, "_connect", small)
    with pytest.raises(LedgerError, match="can't be used"):
        index.claim(OWN, of(*map(str, range(2000))))
    monkeypatch.undo()
    assert len(tags(tmp_path)) == 2
    index.claim(OTHER, of(*map(str, range(2000))))


def test_a_folder_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LedgerError, match="can't be used"):
        UnitIndex(tmp_path / "file").claim(OWN, of("jones"))


def test_what_fails_while_units_are_listed_claims_none(tmp_path: Path) -> None:
    def listed() -> Iterator[list[Identity]]:
        yield [by_id("jones")]
        raise KeyboardInterrupt

    index = UnitIndex(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        index.claim(OWN, listed())
    index.claim(OTHER, of("jones"))


def test_a_second_process_is_refused_when_it_waited_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = UnitIndex(tmp_path)
    index.claim(OWN, of("jones"))
    monkeypatch.setattr(units, "WAIT", 0.05)
    other = sqlite3.connect(index.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerInUseError, match="in use by another process"):
        index.claim(OTHER, of("smith"))
    other.close()
    index.claim(OTHER, of("smith"))


def test_of_many_at_once_one_gets_a_unit(tmp_path: Path) -> None:
    """From the very first claim on, which makes the key."""

    def slowly(number: int) -> Iterable[list[Identity]]:
        yield [by_id("shared")]
        time.sleep(0.01)
        yield [by_id(f"own {number}")]

    def claim(number: int) -> bool:
        try:
            UnitIndex(tmp_path).claim(f"{number:032x}", slowly(number))
        except OverlapError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(claim, range(8))) == 1
    assert len(tags(tmp_path)) == 3


_WORKER = """
import sys
from pathlib import Path
from fedpriv.privacy.ledger.unit_index import ID, Identity, UnitIndex
print("ready", flush=True)
for step in range(1000):
    units = ([Identity(ID, b"%d %d" % (step, i))] for i in range(500))
    UnitIndex(Path(sys.argv[1])).claim("a" * 32, units)
"""


def check_kills(tmp_path: Path, kills: int) -> None:
    """Each claim of 500 is there as a whole or not at all, and the index is usable."""
    for attempt in range(kills):
        folder = tmp_path / str(attempt)
        worker = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        time.sleep(attempt * 0.0013 % 0.06)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
        UnitIndex(folder).claim("a" * 32, of("jones"))
        claims, rest = divmod(len(tags(folder)) - 2, 500)  # the key's own, and Jones
        assert rest == 0
        for step in range(claims + 1):
            wanted = of(f"{step} 0", f"{step} 499")
            if step < claims:
                with pytest.raises(OverlapError, match="2 with"):
                    UnitIndex(folder).claim(OTHER, wanted)
            else:
                UnitIndex(folder).claim(OTHER, wanted)


def test_killed_anywhere_a_claim_is_whole_or_absent(tmp_path: Path) -> None:
    check_kills(tmp_path, 8)


@pytest.mark.nightly
def test_killed_at_many_points_a_claim_is_whole_or_absent(tmp_path: Path) -> None:
    check_kills(tmp_path, 150)
