"""The ledger: what it counts, what it refuses, and what survives a crash at any point."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from datetime import datetime, tzinfo
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import (
    AccountingError,
    BudgetError,
    LedgerCorruptError,
    LedgerError,
    LedgerInUseError,
    SlotError,
)
from fedpriv.files import canonical_json
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.ledger import administration, chain
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.ledger import (
    KEPT_REPLIES,
    Head,
    Ledger,
    Plan,
    Reservation,
    Terms,
    read_history,
)
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule
from fedpriv.privacy.ledger.witness import Witness, seal_key
from fedpriv.report import ledger_export
from fedpriv.secret import create_secret
from tests.example_counts import examples

TERMS = Terms(
    dataset_id="0" * 32,
    declared_size=200,
    unit="record",
    max_records_per_unit=1,
    delta=1e-5,
    budget=4.0,
    simulated=True,
)
PLAN = Plan("job-1", "dp-lora", 0.1, 1.5, 1.0, 8, "sha256:" + "c" * 64)
DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def with_plan(path: Path, plan: Plan = PLAN) -> Ledger:
    ledger = Ledger.create(path, TERMS)
    ledger.commit(plan)
    return ledger


def take(ledger: Ledger, slot: int, digest: str = DIGEST, job: str = "job-1") -> Reservation:
    reservation = ledger.reserve(job, slot, digest)
    assert isinstance(reservation, Reservation)
    return reservation


def test_committed_is_the_whole_plan_and_spent_the_reserved_slots(path: Path) -> None:
    with with_plan(path) as ledger:
        assert ledger.epsilon_spent == 0
        assert ledger.epsilon_committed == epsilon_upper([Event(0.1, 1.5, 8)], 1e-5)
        take(ledger, 0)
        assert ledger.epsilon_spent == epsilon_upper([Event(0.1, 1.5, 1)], 1e-5)
        ledger.release(take(ledger, 1, OTHER), b"reply")
        assert ledger.epsilon_spent == epsilon_upper([Event(0.1, 1.5, 2)], 1e-5)
        assert ledger.slots("job-1") == [(0, False), (1, True)]


def test_reserved_counts_as_spent_also_after_a_crash(path: Path) -> None:
    with with_plan(path) as ledger:
        take(ledger, 0)
        spent, head = ledger.epsilon_spent, ledger.head
        assert spent == epsilon_upper([PLAN.event(1)], 1e-5)
    with Ledger.open(path) as ledger:
        assert (ledger.epsilon_spent, ledger.head) == (spent, head)
        take(ledger, 0)  # the same reservation, not a second one
        assert (ledger.epsilon_spent, ledger.head) == (spent, head)


def test_a_repeated_request_gets_the_stored_reply(path: Path) -> None:
    with with_plan(path) as ledger:
        ledger.release(take(ledger, 0), b"first answer")
        head = ledger.head
        assert ledger.reserve("job-1", 0, DIGEST) == b"first answer"
        assert ledger.head == head
    with Ledger.open(path) as ledger:
        assert ledger.reserve("job-1", 0, DIGEST) == b"first answer"


def test_a_changed_request_under_an_old_slot_is_refused_for_ever(path: Path) -> None:
    with with_plan(path) as ledger:
        reservation = take(ledger, 0)
        with pytest.raises(SlotError, match="another request"):
            ledger.reserve("job-1", 0, OTHER)
        ledger.release(reservation, b"x")
        with pytest.raises(SlotError, match="another request"):
            ledger.reserve("job-1", 0, OTHER)


def test_slots_of_a_round_are_taken_together_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_plan(path) as ledger:
        real, seen = Ledger._append, []

        def failing(self: Ledger, kind: str, body: dict[str, Any]) -> None:
            seen.append(kind)
            if len(seen) == 2:
                raise OSError("No space left on device")
            real(self, kind, body)

        monkeypatch.setattr(Ledger, "_append", failing)
        with pytest.raises(OSError, match="No space"):
            ledger.reserve_all("job-1", range(2, 5), DIGEST)
        assert ledger.slots("job-1") == []
        monkeypatch.undo()
        paid = ledger.reserve_all("job-1", range(2, 5), DIGEST)
        assert [item.slot for item in paid if isinstance(item, Reservation)] == [2, 3, 4]
        assert ledger.epsilon_spent == epsilon_upper([PLAN.event(3)], 1e-5)
    with Ledger.open(path) as ledger:  # after a crash
        rows = len(ledger.rows())
        again = ledger.reserve_all("job-1", range(2, 5), DIGEST)
        assert len(ledger.rows()) == rows and not isinstance(again, bytes)
        ledger.release_all(again, b"their reply")
        assert ledger.reserve_all("job-1", range(2, 5), DIGEST) == b"their reply"
        assert ledger.epsilon_spent == epsilon_upper([PLAN.event(3)], 1e-5)
        with pytest.raises(SlotError, match="not open for release"):
            ledger.release_all(again, b"another")
        ledger.check_outbox()


@pytest.mark.parametrize("slots", [range(1, 4), range(4, 7), range(2, 3), range(1, 6)])
@pytest.mark.parametrize("released", [True, False])
def test_a_slot_is_in_one_round_only(path: Path, slots: range, released: bool) -> None:
    """Whatever the digest: a round that shares some of its slots with another is refused."""
    with with_plan(path) as ledger:
        paid = ledger.reserve_all("job-1", range(2, 5), DIGEST)
        assert not isinstance(paid, bytes)
        if released:
            ledger.release_all(paid, b"reply")
        rows = ledger.rows()
        for digest in (OTHER, DIGEST) if slots != range(2, 3) else (OTHER,):
            with pytest.raises(SlotError):
                ledger.reserve_all("job-1", slots, digest)
        assert ledger.rows() == rows


@pytest.mark.parametrize("slots", [range(0), range(3, 3), range(-1, 2), range(6, 9), range(8, 9)])
def test_slots_that_no_plan_holds_are_refused(path: Path, slots: range) -> None:
    with with_plan(path) as ledger, pytest.raises(SlotError, match="no plan of job"):
        ledger.reserve_all("job-1", slots, DIGEST)


def test_a_slot_is_released_once(path: Path) -> None:
    with with_plan(path) as ledger:
        reservation = take(ledger, 0)
        ledger.release(reservation, b"x")
        with pytest.raises(SlotError, match="not open"):
            ledger.release(reservation, b"y")
        unpaid = copy(reservation)
        unpaid.slot = 3
        with pytest.raises(SlotError, match="not open"):
            ledger.release(unpaid, b"unpaid")
        assert ledger.reserve("job-1", 0, DIGEST) == b"x"


@pytest.mark.parametrize(("job", "slot"), [("job-1", 8), ("job-1", -1), ("job-2", 0)])
def test_a_slot_outside_the_plan_is_refused(path: Path, job: str, slot: int) -> None:
    with with_plan(path) as ledger, pytest.raises(SlotError, match="no plan"):
        ledger.reserve(job, slot, DIGEST)


def test_only_the_last_replies_are_kept(path: Path) -> None:
    with with_plan(path) as ledger:
        for slot in range(KEPT_REPLIES + 1):
            ledger.release(take(ledger, slot), b"%d" % slot)
        with pytest.raises(SlotError, match="only the last"):
            ledger.reserve("job-1", 0, DIGEST)
        assert ledger.reserve("job-1", KEPT_REPLIES, DIGEST) == b"%d" % KEPT_REPLIES


def test_the_replies_of_an_older_job_make_room(path: Path) -> None:
    """Or a ledger would grow by two replies a job, for ever."""
    with Ledger.create(path, replace(TERMS, rule=SumRule(4e-6), budget=9.0)) as ledger:
        ledger.commit(PLAN)
        ledger.release(take(ledger, 0), b"old")
        ledger.commit(replace(PLAN, job="job-2", steps=1))
        assert ledger.reserve("job-1", 0, DIGEST) == b"old"
        ledger.release(take(ledger, 0, job="job-2"), b"new")
        with pytest.raises(SlotError, match="newest job"):
            ledger.reserve("job-1", 0, DIGEST)
        assert ledger.reserve("job-2", 0, DIGEST) == b"new"


def test_a_plan_over_the_budget_is_refused_at_the_door(path: Path) -> None:
    with Ledger.create(path, TERMS) as ledger:
        head = ledger.head
        with pytest.raises(BudgetError, match=r"more than the budget 4"):
            ledger.commit(replace(PLAN, steps=800))
        assert ledger.head == head
        ledger.commit(PLAN)  # the refusal left nothing behind


def test_default_sums_of_more_units_than_are_proven_are_refused_at_the_door(path: Path) -> None:
    plan = replace(PLAN, sample_rate=0.2, noise_multiplier=10.0)
    with Ledger.create(path, replace(TERMS, declared_size=500_000, delta=1e-7)) as ledger:
        assert ledger.check(plan) < TERMS.budget
        rows = ledger.head.rows
        with pytest.raises(BudgetError, match=r"draws 100,500 units.*numerics = 'strict'"):
            ledger.commit(replace(plan, sample_rate=0.201))
        assert ledger.head.rows == rows
        ledger.commit(replace(plan, sample_rate=0.201, numerics="strict"))


def test_no_default_sum_is_made_once_a_population_has_grown_too_large(path: Path) -> None:
    rule = RdpRule.best(TERMS.budget, 1e-7)
    terms = replace(TERMS, declared_size=100_000, delta=1e-7, rule=rule)
    with Ledger.create(path, terms) as ledger:
        ledger.commit(replace(PLAN, sample_rate=0.5, noise_multiplier=20.0))
        paid = take(ledger, 0)
        administration.grow(ledger, 300_000, 1e-7)
        for slot in (0, 1):  # paid for or not
            with pytest.raises(BudgetError, match="draws 150,000 units"):
                take(ledger, slot)
        ledger.release(paid, b"reply")
        assert ledger.reserve("job-1", 0, DIGEST) == b"reply"


def test_the_rule_plan_allows_one_plan_for_life(path: Path) -> None:
    with with_plan(path) as ledger:
        ledger.commit(PLAN)  # the same again changes nothing
        with pytest.raises(BudgetError, match="one plan for life"):
            ledger.commit(replace(PLAN, job="job-2"))
        with pytest.raises(BudgetError, match="another plan"):
            ledger.commit(replace(PLAN, noise_multiplier=9.0))
        assert [row.kind for row in ledger.rows()] == ["terms", "plan"]


@pytest.mark.parametrize(
    "change", [{"delta": 0.005}, {"delta": 0.0}, {"budget": 0.0}, {"budget": -1.0}]
)
def test_terms_that_promise_nothing_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(LedgerError, match="Expected"):
        replace(TERMS, **change)


def opened_elsewhere(path: Path) -> str:
    """What another process says that opens the ledger."""
    code = (
        "import sys, pathlib; from fedpriv.privacy.ledger.ledger import Ledger;"
        "Ledger.open(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_a_second_opener_is_refused(path: Path) -> None:
    with with_plan(path):
        with pytest.raises(LedgerInUseError, match="in use"):
            Ledger.open(path)
        assert "LedgerInUseError" in opened_elsewhere(path)
    Ledger.open(path).close()


def test_threads_share_a_ledger(path: Path) -> None:
    with with_plan(path) as ledger:
        threads = [
            threading.Thread(target=lambda s=s: ledger.release(take(ledger, s), b"x"))
            for s in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.slots("job-1") == [(s, True) for s in range(8)]
    Ledger.open(path).close()


def tamper(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER rows_are_final")
    connection.execute("DROP TRIGGER rows_are_kept")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UPDATE rows SET body = replace(body, '1.5', '9.5') WHERE kind = 'plan'",
            "row 2 was edited",
        ),
        (
            "UPDATE rows SET body = replace(body, '\"budget\":4.0', '\"budget\":9.0')",
            "row 1 was edited",
        ),
        ("DELETE FROM rows WHERE number = 3", "row 3 is missing"),
        ("DELETE FROM rows", "row 1 is missing"),
        ("UPDATE rows SET kind = 'note' WHERE number = 4", "row 4 was edited"),
        ("UPDATE outbox SET reply = x'00'", "not the released one"),
    ],
)
def test_edited_and_missing_rows_show(path: Path, statement: str, message: str) -> None:
    with with_plan(path) as ledger:
        ledger.release(take(ledger, 0), b"x")
        take(ledger, 1)
    tamper(path, statement)
    with pytest.raises(LedgerCorruptError, match=message), Ledger.open(path) as ledger:
        ledger.reserve("job-1", 0, DIGEST)


def test_a_row_that_got_a_hash_of_its_own_shows_at_the_next(path: Path) -> None:
    with with_plan(path) as ledger:
        take(ledger, 0)
        first, plan, _ = ledger.rows()
    body = canonical_json({**plan.body, "noise_multiplier": 9.5})
    digest = chain.row_hash(first.hash, "plan", body)
    tamper(path, f"UPDATE rows SET body = '{body.decode()}', hash = '{digest}' WHERE number = 2")
    with pytest.raises(LedgerCorruptError, match="row 3 was edited"):
        Ledger.open(path)


@pytest.mark.parametrize("body", ["[]", "[1]", '"text"', "7", "null", "true", "{", "NaN"])
def test_a_row_that_is_no_json_object_is_a_typed_error_that_names_the_file(
    path: Path, body: str
) -> None:
    with Ledger.create(path, TERMS) as ledger:
        digest = chain.row_hash(ledger.head.hash, "note", body.encode())
    tamper(path, f"INSERT INTO rows VALUES (2, 'note', '{body}', '{digest}')")
    for reading in (False, True):
        with pytest.raises(LedgerCorruptError, match=r"a row (has no fields|is no JSON)") as raised:
            Ledger.open(path, reading=reading)
        assert str(raised.value).startswith(f"{path}: ")
    first = chain.row_hash(chain.GENESIS, "terms", body.encode())
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM rows WHERE number = 2")
        connection.execute("UPDATE rows SET body = ?, hash = ?", (body, first))
    with pytest.raises(LedgerCorruptError, match=r"a row (has no fields|is no JSON)"):
        Ledger.open(path)


@pytest.mark.parametrize("body", [[], [1], [["job", 1]], "text", 7, None])
def test_an_exported_row_that_is_no_json_object_is_a_typed_error(
    path: Path, tmp_path: Path, body: Any
) -> None:
    digest = chain.row_hash(chain.GENESIS, "terms", canonical_json(body))
    rows = [{"kind": "terms", "body": body, "hash": digest}]
    head = {"rows": 1, "hash": digest}
    content = canonical_json({"format": ledger_export.FORMAT, "head": head, "rows": rows})
    with pytest.raises(LedgerCorruptError, match=r"export\.json: "):
        ledger_export.exported_rows(content, tmp_path / "export.json")


def test_rows_cannot_be_changed_through_sql(path: Path) -> None:
    with_plan(path).close()
    connection = sqlite3.connect(path)
    for statement in ("DELETE FROM rows", "UPDATE rows SET body = '{}'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)


def test_a_restored_older_copy_is_told_by_its_witness(path: Path, tmp_path: Path) -> None:
    with with_plan(path) as ledger:
        take(ledger, 0)
    backup = tmp_path / "backup.db"
    shutil.copy(path, backup)
    with Ledger.open(path) as ledger:
        take(ledger, 1)
        seen = ledger.head
        ledger.check_witness(seen)
        ledger.check_witness(Head(0, "0" * 64))
    with Ledger.open(backup) as ledger:  # whole in itself
        with pytest.raises(LedgerCorruptError, match="back in time"):
            ledger.check_witness(seen)
        take(ledger, 2, OTHER)  # another branch of the same length
        with pytest.raises(LedgerCorruptError, match="back in time"):
            ledger.check_witness(seen)


def test_files_that_are_no_ledger_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no such ledger"):
        Ledger.open(path)
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(LedgerCorruptError, match="not a fedpriv ledger"):
        Ledger.open(path)
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE rows (number)")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="is not a fedpriv ledger"):
        Ledger.open(foreign)


def test_a_newer_format_is_refused(path: Path) -> None:
    with_plan(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LedgerError, match="format 99"):
        Ledger.open(path)


def test_an_existing_ledger_is_not_made_again(path: Path) -> None:
    with_plan(path).close()
    with pytest.raises(LedgerError, match="already exists"):
        Ledger.create(path, TERMS)


def test_a_full_disk_stops_before_the_release(path: Path) -> None:
    with with_plan(path) as ledger:
        reservation = take(ledger, 0)
        head = ledger.head
        pages = ledger._chain._connection.execute("PRAGMA page_count").fetchone()[0]
        ledger._chain._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerError, match="can't be written"):
            ledger.release(reservation, b"x" * 100_000)
        assert ledger.head == head
        assert ledger.slots("job-1") == [(0, False)]
        ledger._chain._connection.execute("PRAGMA max_page_count = 1000000")
        ledger.release(reservation, b"x" * 100_000)
    Ledger.open(path).close()


def test_a_row_is_on_the_disk_before_anything_follows(path: Path) -> None:
    """What survives power loss no test can try; what SQLite promises it by, one can read."""
    with with_plan(path) as ledger:
        [synchronous] = ledger._chain._connection.execute("PRAGMA synchronous").fetchone()
        [journal] = ledger._chain._connection.execute("PRAGMA journal_mode").fetchone()
        assert (synchronous, journal) == (3, "delete")  # EXTRA, and no log beside the file


def test_only_the_owner_may_read_it(path: Path) -> None:
    with_plan(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


@settings(deadline=None, max_examples=examples(40))
@given(
    actions=st.lists(
        st.tuples(
            st.integers(0, 9), st.sampled_from([DIGEST, OTHER]), st.booleans(), st.booleans()
        ),
        max_size=20,
    )
)
def test_any_history_counts_every_slot_once(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[int, str, bool, bool]]
) -> None:
    """A model of the ledger in a dict: reserve, release or not, reopen or not, in any order."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    ledger = with_plan(path)
    taken: dict[int, tuple[str, bytes | None]] = {}
    released: list[int] = []
    try:
        for slot, digest, releases, reopens in actions:
            if slot >= PLAN.steps or (slot in taken and taken[slot][0] != digest):
                with pytest.raises(SlotError):
                    ledger.reserve("job-1", slot, digest)
            elif slot in taken and taken[slot][1] is not None:
                try:
                    assert ledger.reserve("job-1", slot, digest) == taken[slot][1]
                except SlotError:
                    assert slot not in released[-KEPT_REPLIES:]
            else:
                reservation = take(ledger, slot, digest)
                reply = b"reply %d" % slot if releases else None
                if reply is not None:
                    ledger.release(reservation, reply)
                    released.append(slot)
                taken[slot] = (digest, reply)
            if reopens:
                head = ledger.head
                ledger.close()
                ledger = Ledger.open(path)
                assert ledger.head == head
            assert len(ledger.slots("job-1")) == len(taken)
    finally:
        ledger.close()


_PARENT = """
import os, random, signal, sys, time
from dataclasses import replace
from pathlib import Path
from fedpriv.errors import SlotError
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation

assert "torch" not in sys.modules
folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
terms = Terms("0" * 32, 200, "record", 1, 1e-5, 4.0, simulated=True)
plan = Plan("job-1", "dp-lora", 0.1, 1.5, 1.0, 8, "sha256:" + "c" * 64)
rng = random.Random(seed)


def work(path, out):
    with Ledger.open(path, path.with_suffix(".witness")) as ledger:
        ledger.commit(plan)
        for slot in range(plan.steps):
            try:
                found = ledger.reserve("job-1", slot, "sha256:" + "a" * 64)
            except SlotError:
                continue  # answered long ago
            if isinstance(found, Reservation):
                reply = os.urandom(16)
                ledger.release(found, reply)
            else:
                reply = found
            os.write(out, b"%d %s\\n" % (slot, reply.hex().encode()))


def run(path, delay):
    out = os.open(path.with_suffix(".sent"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(path, out)
            code = 0
        finally:
            os._exit(code)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(out)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the worker failed by itself"
    return os.WIFSIGNALED(status)


started = time.monotonic()
first = folder / "whole.db"
Ledger.create(first, terms, first.with_suffix(".witness")).close()
run(first, None)
whole = time.monotonic() - started
done = number = 0
while done < kills:
    number += 1
    path = folder / f"{number}.db"
    Ledger.create(path, terms, path.with_suffix(".witness")).close()
    for _ in range(4):
        done += run(path, rng.uniform(0, whole))
    run(path, None)
print(done, number)
"""


def check_kills(folder: Path, kills: int) -> None:
    """A release is never sent unpaid, and never sent as two different values."""
    command = [sys.executable, "-c", _PARENT, str(folder), str(kills), str(kills)]
    parent = subprocess.run(command, capture_output=True, text=True)
    assert parent.returncode == 0, parent.stderr
    done, ledgers = map(int, parent.stdout.split())
    assert done >= kills
    for number in range(1, ledgers + 1):
        path = folder / f"{number}.db"
        sent: dict[int, set[str]] = {}
        for line in path.with_suffix(".sent").read_text().splitlines():
            slot, reply = line.split()
            sent.setdefault(int(slot), set()).add(reply)
        assert set(sent) <= set(range(8)) and 7 in sent
        assert all(len(replies) == 1 for replies in sent.values())
        with Ledger.open(path, path.with_suffix(".witness")) as ledger:
            kinds = [row.kind for row in ledger.rows()]
            assert kinds.count("reserve") == kinds.count("release") == 8
            assert ledger.slots("job-1") == [(slot, True) for slot in range(8)]
            assert ledger.epsilon_spent == ledger.epsilon_committed


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a disk: what a killed process wrote is there all the same."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def test_killed_anywhere_it_never_under_counts(fast_folder: Path) -> None:
    check_kills(fast_folder, 60)


@pytest.mark.nightly
def test_killed_at_a_thousand_points_it_never_under_counts(fast_folder: Path) -> None:
    check_kills(fast_folder, 1000)


def test_a_ledger_that_cannot_be_read_back_after_a_fault_sells_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = with_plan(path)
    ledger.release(take(ledger, 0), b"x")

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(ledger._chain, "append", fail)
    monkeypatch.setattr(ledger._chain, "rows", fail)
    with pytest.raises((LedgerError, sqlite3.Error)):
        ledger.reserve("job-1", 1, DIGEST)
    monkeypatch.undo()
    with pytest.raises((LedgerError, BudgetError, sqlite3.Error)):
        ledger.commit(replace(PLAN, job="job-2"))
    for slot, digest in ((0, DIGEST), (0, OTHER), (1, DIGEST), (2, DIGEST)):
        with pytest.raises((LedgerError, sqlite3.Error)):
            ledger.reserve("job-1", slot, digest)
    with Ledger.open(path) as again:
        assert again.slots("job-1") == [(0, True)]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("plan", {"job": "job-2"}),
        ("reserve", {"job": "job-1", "slot": 0, "request": OTHER}),
        ("reserve", {"job": "job-2", "slot": 0, "request": OTHER}),
        ("release", {"job": "job-1", "slot": 0, "reply": "y"}),
        ("release", {"job": "job-1", "slot": 5, "reply": "y"}),
        ("refund", {"job": "job-1", "slot": 0}),
    ],
)
def test_rows_that_do_not_follow_are_refused(
    path: Path, kind: str, body: dict[str, object]
) -> None:
    with with_plan(path) as ledger:
        ledger.release(take(ledger, 0), b"x")
        with ledger._chain.transaction():
            ledger._chain.append(kind, body, dated=False)  # a chain whose hashes are right
    with pytest.raises(LedgerCorruptError, match="does not follow"):
        Ledger.open(path)


def test_a_clock_that_goes_back_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_plan(path) as ledger:
        take(ledger, 0)
        spent = ledger.epsilon_spent

    class Past(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Past:
            return cls(1970, 1, 1, tzinfo=tz)

    monkeypatch.setattr(chain, "datetime", Past)
    with Ledger.open(path) as ledger:
        assert ledger.epsilon_spent == spent
        with pytest.raises(SlotError, match="another request"):
            ledger.reserve("job-1", 0, OTHER)
        take(ledger, 1)
        administration.close_job(ledger, "job-1")
        assert ledger.rows()[-1].body["at"].startswith("1970")
    with Ledger.open(path) as ledger:
        assert [slot for slot, _ in ledger.slots("job-1")] == [0, 1]


_FULL = """
import resource, signal, sys
from pathlib import Path
from fedpriv.privacy.ledger.ledger import Ledger, Reservation
path, digest = Path(sys.argv[1]), "sha256:" + "a" * 64
with Ledger.open(path) as ledger:
    reserved = ledger.reserve("job-1", 0, digest)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    for spend in (lambda: ledger.release(reserved, bytes(10**6)),
                  lambda: [ledger.reserve("job-1", slot, digest + "b" * 9**5) for slot in (1, 2)]):
        try:
            spend()
            print("sent")
        except Exception as error:
            print(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    ledger.release(ledger.reserve("job-1", 0, digest), b"x")
    print("sent")
"""


def test_a_disk_that_is_full_for_a_while_stops_before_release(path: Path) -> None:
    """The operating system refuses the write, as it does on a full disk."""
    with_plan(path).close()
    child = subprocess.run([sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True)
    assert child.stdout.split() == ["LedgerError", "LedgerError", "sent"], child.stderr
    with Ledger.open(path) as ledger:
        assert ledger.slots("job-1") == [(0, True)]


def test_a_witness_is_told_of_every_row(path: Path, tmp_path: Path) -> None:
    witness = tmp_path / "elsewhere.json"
    with Ledger.create(path, TERMS, witness) as ledger:
        assert Witness.read(witness).seen[-1].head == ledger.head
        ledger.commit(PLAN)
        ledger.release(take(ledger, 0), b"x")
        seen = Witness.read(witness).seen
        assert [sighting.hash for sighting in seen] == [row.hash for row in ledger.rows()]
    backup = tmp_path / "backup.db"
    shutil.copy(path, backup)
    with Ledger.open(path, witness) as ledger:
        take(ledger, 1)
    shutil.copy(backup, path)
    with pytest.raises(LedgerCorruptError, match=r"back in time.*fedpriv ledger recover"):
        Ledger.open(path, witness)
    with pytest.raises(LedgerError, match="fresh budget"):
        Ledger.create(tmp_path / "new.db", TERMS, witness)


def test_a_ledger_that_was_not_made_leaves_no_witness(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness, start = tmp_path / "elsewhere.json", Witness.start

    def interrupted(*arguments: Any) -> Witness:
        start(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Witness, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Ledger.create(path, TERMS, witness)
    assert list(tmp_path.iterdir()) == [tmp_path / "witness.key"]  # of no ledger yet
    Ledger.create(path, TERMS, witness).close()


@pytest.mark.parametrize(
    "where",
    [
        "fedpriv.privacy.ledger.chain._connect",
        "fedpriv.privacy.ledger.chain.Chain.append",
        "fedpriv.privacy.ledger.witness.Witness.start",
        "fedpriv.files._name",
    ],
)
def test_a_making_that_was_killed_can_be_done_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    witness = tmp_path / "elsewhere.json"
    if where.endswith("_name"):
        seal_key(path)  # or it would be the file that is being named
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    else:
        monkeypatch.setattr(where, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        Ledger.create(path, TERMS, witness)
        os._exit(0)
    assert list(tmp_path.glob("*.db")) == []  # what is there by name is whole
    if where.endswith("_name"):
        with pytest.raises(
            LedgerError, match=r"If there never was a ledger of .* remove this file"
        ):
            Ledger.create(path, TERMS, witness)
        witness.unlink()
    Ledger.create(path, TERMS, witness).close()
    Ledger.open(path, witness).close()


def test_of_two_that_make_one_ledger_one_does(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = chain.Chain.create

    def later(*arguments: Any) -> Any:
        monkeypatch.undo()
        Ledger.create(path, replace(TERMS, dataset_id="1" * 32)).close()
        return create(*arguments)

    monkeypatch.setattr(chain.Chain, "create", later)
    with pytest.raises(LedgerError, match="already exists"):
        Ledger.create(path, TERMS)
    with Ledger.open(path) as ledger:
        assert ledger.terms.dataset_id == "1" * 32


def test_a_witness_may_be_a_link_to_another_disk(path: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "witness"
    link.symlink_to(tmp_path / "disk" / "witness")
    with Ledger.create(path, TERMS, link) as ledger:
        ledger.commit(PLAN)
    assert link.is_symlink()
    assert len(Witness.read(tmp_path / "disk" / "witness").seen) == 2


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A write beyond it is cut short, as on a full disk, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_witness_that_is_told_half_a_line_is_not_told(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness, add = tmp_path / "witness.json", Witness.add

    def with_little_room(self: Witness, seen: Any) -> None:
        with largest_file(self.path.stat().st_size + 10):
            add(self, seen)

    with Ledger.create(path, TERMS, witness) as ledger:
        ledger.commit(PLAN)
        with monkeypatch.context() as patched:
            patched.setattr(Witness, "add", with_little_room)
            for _ in range(2):
                with pytest.raises(LedgerError, match=r"can't be written \(No space left"):
                    take(ledger, 0)
        assert Witness.read(witness).seen[-1].rows < ledger.head.rows  # it was reserved
        ledger.release(take(ledger, 0), b"x")
        assert Witness.read(witness).seen[-1].head == ledger.head
    Ledger.open(path, witness).close()


def test_a_witness_that_could_not_be_told_once_is_told_later(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness, fsync, faults = tmp_path / "witness.json", os.fsync, [1]

    def failing(file: int) -> None:
        if faults and os.path.samestat(os.fstat(file), witness.stat()):
            faults.pop()
            raise OSError(5, "Input/output error")
        fsync(file)

    with Ledger.create(path, TERMS, witness) as ledger:
        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(LedgerError, match="Input/output error"):
            ledger.commit(PLAN)
        ledger.commit(PLAN)
        assert Witness.read(witness).seen[-1].head == ledger.head


def test_nothing_is_recovered_from_a_witness_that_is_at_work(path: Path, tmp_path: Path) -> None:
    witness, backup = tmp_path / "witness.json", tmp_path / "backup.db"
    with Ledger.create(path, TERMS, witness) as ledger:
        shutil.copy(path, backup)
        ledger.commit(PLAN)
        with pytest.raises(LedgerInUseError, match="witness of a ledger that is open"):
            administration.recover(backup, witness)
        take(ledger, 0)


def test_a_ledger_that_was_not_made_leaves_the_witness_of_another(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = tmp_path / "elsewhere.json"
    other = replace(TERMS, dataset_id="1" * 32)

    def started_by_another(*_: object) -> Witness:
        monkeypatch.undo()
        Ledger.create(tmp_path / "other.db", other, witness).close()
        raise LedgerError("no")

    monkeypatch.setattr(Witness, "start", started_by_another)
    with pytest.raises(LedgerError, match="no"):
        Ledger.create(path, TERMS, witness)
    assert not path.exists()
    Ledger.open(tmp_path / "other.db", witness).close()


def test_a_witness_of_another_ledger_is_refused(path: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness.json"
    Ledger.create(path, TERMS, tmp_path / "own.json").close()
    Ledger.create(tmp_path / "b.db", replace(TERMS, dataset_id="1" * 32), witness).close()
    for opened in (Ledger.open, administration.recover):
        with pytest.raises(LedgerError, match=r"is (the witness )?of population 1111"):
            opened(path, witness)
    with pytest.raises(LedgerError, match=r"is the witness of population 1111"):
        Ledger.open(path, witness, reading=True)
    with_plan(tmp_path / "c.db").close()
    with pytest.raises(LedgerError, match="without a witness"):
        Ledger.open(tmp_path / "c.db", witness)
    witness.write_text("{}")
    with pytest.raises(LedgerError, match="is not the witness"):
        Ledger.open(path, witness)


def test_another_witness_needs_the_newest_head_that_was_seen(path: Path, tmp_path: Path) -> None:
    witness, backup = tmp_path / "witness.json", tmp_path / "backup.db"
    with Ledger.create(path, TERMS, witness) as ledger:
        older = ledger.head
        shutil.copy(path, backup)
        ledger.commit(PLAN)
        ledger.release(take(ledger, 0), b"x")
        newest = ledger.head
    with pytest.raises(LedgerError, match="is not lost"):
        administration.witness_anew(path, witness, [newest])
    witness.unlink()
    with pytest.raises(LedgerError, match=r"is not there.*fedpriv ledger witness"):
        Ledger.open(path, witness)
    with pytest.raises(LedgerCorruptError, match="back in time"):
        administration.witness_anew(backup, witness, [older, newest])
    with pytest.raises(LedgerError, match="can't be written"):
        administration.witness_anew(path, tmp_path / "gone" / "witness.json", [newest])
    assert not witness.exists()
    for slot, seen in enumerate(([], [older], [older, newest]), 1):
        with administration.witness_anew(path, witness, seen) as ledger:
            take(ledger, slot)
            assert Witness.read(witness).seen[-1].head == ledger.head
        with pytest.raises(LedgerCorruptError, match="back in time"):
            Ledger.open(backup, witness, reading=True)
        witness.unlink()
    with_plan(tmp_path / "plain.db").close()
    with pytest.raises(LedgerError, match="without a witness"):
        administration.witness_anew(tmp_path / "plain.db", witness)


def test_a_witness_that_cannot_be_told_stops_before_release(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stick"
    folder.mkdir()
    with Ledger.create(path, TERMS, folder / "witness.json") as ledger:
        ledger.commit(PLAN)
        folder.rename(tmp_path / "pulled out")
        for _ in range(3):  # asking again does not help
            with pytest.raises(LedgerError, match="Nothing is released"):
                ledger.reserve("job-1", 0, DIGEST)
        (tmp_path / "pulled out").rename(folder)
        ledger.release(take(ledger, 0), b"x")
        folder.rename(tmp_path / "pulled out")
        with pytest.raises(LedgerError, match="can't be written"):
            ledger.release(take(ledger, 1), b"y")
    with pytest.raises(LedgerError, match="was made with a witness"):
        Ledger.open(path)
    with pytest.raises(LedgerError, match="was made with a witness"):
        Ledger.open(path, folder / "witness.json")
    (tmp_path / "pulled out").rename(folder)
    with Ledger.open(path, folder / "witness.json") as ledger:
        assert ledger.slots("job-1") == [(0, True), (1, False)]  # paid, and not computed


def test_whoever_spends_waits_for_whoever_looks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look must not stop a site that starts; another that spends does, at once."""
    with_plan(path).close()
    looking, waits = Ledger.open(path, reading=True), []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        looking.close()

    monkeypatch.setattr(chain, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    with Ledger.open(path):
        assert len(waits) == 1
        for reading in (False, True):
            with pytest.raises(LedgerInUseError):
                Ledger.open(path, reading=reading)
        assert len(waits) == 1


def test_a_ledger_that_was_cut_off_while_it_was_written_is_told_when_it_is_looked_at(
    path: Path, tmp_path: Path
) -> None:
    with_plan(path).close()
    writing = sqlite3.connect(path, isolation_level=None)
    writing.execute("PRAGMA cache_size = 1")
    writing.execute("BEGIN IMMEDIATE")
    writing.execute("CREATE TABLE large (text)")
    writing.executemany("INSERT INTO large VALUES (?)", [("x" * 4000,) for _ in range(200)])
    cut = tmp_path / "cut.db"
    shutil.copy(path, cut)
    shutil.copy(f"{path}-journal", f"{cut}-journal")
    writing.close()
    with pytest.raises(LedgerError, match="the next start of the site completes it"):
        Ledger.open(cut, reading=True)
    with Ledger.open(cut) as ledger:
        assert ledger.plan("job-1") is not None
    Ledger.open(cut, reading=True).close()


RULES = [PlanRule(), RdpRule.best(4.0, 1e-5), SumRule(2e-6)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_after_a_rollback_all_that_may_be_missing_is_spent(
    path: Path, tmp_path: Path, rule: Rule
) -> None:
    witness, backup = tmp_path / "witness.json", tmp_path / "backup.db"
    with Ledger.create(path, replace(TERMS, rule=rule), witness) as ledger:
        if not isinstance(rule, PlanRule):
            ledger.commit(replace(PLAN, steps=4))
            take(ledger, 0)
    shutil.copy(path, backup)
    with Ledger.open(path, witness) as ledger:
        ledger.commit(replace(PLAN, job="job-2", steps=6))
        take(ledger, 0, job="job-2")
        lost_head, used, allocated = ledger.head, ledger.history.used, ledger.epsilon_allocated
    shutil.copy(backup, path)
    with pytest.raises(LedgerCorruptError, match=r"back in time.*fedpriv ledger recover"):
        Ledger.open(path, witness, reading=True)
    Ledger.open(path, reading=True).close()
    with administration.recover(path, witness) as ledger:
        assert ledger.history.used == pytest.approx(used)
        assert ledger.epsilon_allocated == pytest.approx(allocated) == ledger.epsilon_spent
        assert ledger.epsilon_allocated <= ledger.epsilon_committed <= TERMS.budget
        ledger.check_witness(lost_head)  # the server and the site's report may say so still
        with pytest.raises(LedgerCorruptError, match="back in time"):
            ledger.check_witness(Head(lost_head.rows - 1, lost_head.hash))
        if not isinstance(rule, PlanRule):
            with pytest.raises(SlotError, match="closed"):
                ledger.reserve("job-1", 1, DIGEST)
        with pytest.raises(BudgetError):
            ledger.commit(replace(PLAN, job="job-3", steps=5000))
    with pytest.raises(LedgerError, match="nothing to recover"):
        administration.recover(path, witness)
    Ledger.open(path, witness).close()


def test_what_is_lost_is_never_rounded_down() -> None:
    assert administration._rounded_up(Fraction(1, 3)) > Fraction(1, 3)
    assert administration._rounded_up(Fraction(1, 2)) == 0.5
    assert math.isinf(administration._rounded_up(Fraction(10) ** 400))


@pytest.mark.parametrize("rule", RULES[1:], ids=lambda rule: rule.name)
def test_a_copy_that_went_its_own_way_is_counted_with_the_other(
    path: Path, tmp_path: Path, rule: Rule
) -> None:
    """Both branches answered slots of the same open plan, and took a plan of their own."""
    witness, aside = tmp_path / "witness.json", tmp_path / "aside.json"
    backup = tmp_path / "backup.db"
    with Ledger.create(path, replace(TERMS, rule=rule, budget=8.0), witness) as ledger:
        ledger.commit(replace(PLAN, steps=4))
    shutil.copy(path, backup)
    shutil.copy(witness, aside)

    def spend(job: str) -> tuple[float, ...]:
        with Ledger.open(path, witness) as ledger:
            take(ledger, 0)
            ledger.commit(replace(PLAN, job=job, steps=5))
            take(ledger, 0, job=job)
            return ledger.history.used

    first = spend("job-2")
    shutil.copy(backup, path)
    newer = witness.read_bytes()
    shutil.copy(aside, witness)  # as if its disk had been restored too, for a while
    second = spend("job-3")
    witness.write_bytes(newer)
    with administration.recover(path, witness) as ledger:
        used = ledger.history.used
    for total, one, other in zip(used, first, second, strict=True):
        assert total == pytest.approx(one + other)


def test_a_cheap_plan_that_was_restored_hides_no_dear_one(path: Path, tmp_path: Path) -> None:
    witness, backup = tmp_path / "witness.json", tmp_path / "backup.db"
    with Ledger.create(path, TERMS, witness) as ledger:
        ledger.commit(replace(PLAN, sample_rate=1e-4, steps=1))
        shutil.copy(path, backup)
        administration.close_job(ledger, "job-1")
        dear = ledger.commit(replace(PLAN, job="job-2", steps=20))
        take(ledger, 0, job="job-2")
    shutil.copy(backup, path)
    with administration.recover(path, witness) as ledger:
        assert ledger.epsilon_committed >= dear


def test_a_witness_is_read_with_care(path: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness.json"
    with Ledger.create(path, TERMS, witness) as ledger:
        ledger.commit(PLAN)
    lines = witness.read_text().splitlines()
    last = json.loads(lines[-1])
    for change in (
        {"used": [-1.0, 0.0]}, {"used": [float("nan"), 0.0]}, {"used": [0.0]}, {"used": "many"},
        {"hash": 7}, {"hash": "g" * 64}, {"rows": 9}, {"rows": True},
    ):  # fmt: skip
        witness.write_text("\n".join([*lines[:-1], json.dumps(last | change), ""]))
        with pytest.raises(LedgerError, match="or is damaged"):
            Ledger.open(path, witness)
    witness.write_text("\n".join([*lines[:-1], lines[-1][:20]]))  # a line that was cut short
    with Ledger.open(path, witness) as ledger:
        take(ledger, 0)
    assert len(Witness.read(witness).seen) == 3


def test_a_file_that_is_moved_or_replaced_sells_nothing(path: Path, tmp_path: Path) -> None:
    with with_plan(path) as ledger:
        backup = tmp_path / "backup.db"
        shutil.copy(path, backup)
        ledger.release(take(ledger, 0), b"x")
        backup.replace(path)
        for _ in range(2):
            with pytest.raises(LedgerCorruptError, match="moved, deleted or replaced"):
                ledger.reserve("job-1", 0, DIGEST)
    with Ledger.open(path) as ledger:
        path.unlink()
        with pytest.raises(LedgerCorruptError, match="moved, deleted or replaced"):
            ledger.reserve("job-1", 1, DIGEST)


def test_the_lock_outlives_whatever_else_reads_the_file(path: Path) -> None:
    """SQLite's own locks go when any descriptor of the file is closed in the same process."""
    with with_plan(path):
        path.read_bytes()
        assert "LedgerInUseError" in opened_elsewhere(path)


def test_reading_changes_nothing(path: Path, tmp_path: Path) -> None:
    with with_plan(path) as ledger:
        take(ledger, 0)
    path.chmod(0o640)
    before = path.read_bytes(), path.stat().st_mode
    with Ledger.open(path, reading=True) as ledger:
        assert ledger.figures()["plans"][0]["reserved"] == 1
        with pytest.raises(LedgerError, match="for reading only"):
            ledger.reserve("job-1", 1, DIGEST)
    assert (path.read_bytes(), path.stat().st_mode) == before
    notes = tmp_path / "notes.jsonl"
    notes.write_text("{}")
    notes.chmod(0o644)
    with pytest.raises(LedgerCorruptError, match="is not a fedpriv ledger"):
        Ledger.open(notes)
    assert notes.stat().st_mode & 0o777 == 0o644


def test_rows_that_follow_a_computation_hold_no_time(path: Path) -> None:
    """Their hash is in the reply, and would tell how long it took."""
    with with_plan(path) as ledger:
        ledger.release(take(ledger, 0), b"x")
        dated = {row.kind: "at" in row.body for row in ledger.rows()}
    assert dated == {"terms": True, "plan": True, "reserve": False, "release": False}


def test_replies_are_kept_in_order_of_release(path: Path) -> None:
    with with_plan(path) as ledger:
        for slot in reversed(range(8)):
            ledger.release(take(ledger, slot), b"%d" % slot)
        kept = ledger._chain._connection.execute("SELECT slot FROM outbox").fetchall()
        assert sorted(kept) == [(0,), (1,)]


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0}, {"steps": 1.5}, {"steps": True}, {"steps": 10**10}, {"sample_rate": 0.0},
        {"sample_rate": float("nan")}, {"sample_rate": "much"}, {"noise_multiplier": 0.0},
        {"noise_multiplier": float("inf")}, {"noise_multiplier": 1e200}, {"clip_norm": -1.0},
        {"clip_norm": float("nan")}, {"numerics": "Strict"}, {"job": 5},
    ],
)  # fmt: skip
def test_a_plan_of_hostile_values_is_none(change: dict[str, Any]) -> None:
    with pytest.raises((AccountingError, TypeError)):
        replace(PLAN, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"declared_size": 0}, {"declared_size": 0.5}, {"private": "yes"}, {"budget": float("inf")},
        {"relation": "anything"}, {"max_records_per_unit": True}, {"budget": float("nan")},
    ],
)  # fmt: skip
def test_terms_of_hostile_values_are_none(change: dict[str, Any]) -> None:
    with pytest.raises((LedgerError, ZeroDivisionError)):
        replace(TERMS, **change)


def test_nothing_is_left_of_a_ledger_that_could_not_be_made(path: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="witness can't be written"):
        Ledger.create(path, TERMS, tmp_path / "nowhere" / "witness.json")
    assert not path.exists()
    Ledger.create(path, TERMS).close()


def set_back(path: Path, witness: Path) -> Head:
    """A ledger that took a plan, as it was before, beside a witness that saw it taken.

    Returns:
        The newest head of what was lost.
    """
    with Ledger.create(path, TERMS, witness):
        older = path.read_bytes()
    with Ledger.open(path, witness) as ledger:
        ledger.commit(PLAN)
        take(ledger, 0)
        newest = ledger.head
    path.write_bytes(older)
    return newest


def forgetful(witness: Path, **last: Any) -> None:
    """Of a witness what somebody makes who can write to its disk: that nothing was taken."""
    first, *lines = map(json.loads, witness.read_text().splitlines())
    told = [line | {"used": [0.0, 0.0], "open": [0.0, 0.0]} for line in lines]
    told[-1] |= last
    witness.write_text("".join(json.dumps(line) + "\n" for line in (first, *told)))


def test_a_witness_that_nobody_sealed_recovers_nothing(path: Path, tmp_path: Path) -> None:
    witness = tmp_path / "witness.json"
    set_back(path, witness)
    kept, before = witness.read_bytes(), path.read_bytes()
    forgetful(witness)
    with pytest.raises(LedgerError, match=r"line 3 is not sealed .* nobody vouches"):
        administration.recover(path, witness)
    forgetful(witness, seal="0" * 64)
    with pytest.raises(LedgerError, match="is not sealed"):
        administration.recover(path, witness)
    assert path.read_bytes() == before
    witness.write_bytes(kept)
    with administration.recover(path, witness) as ledger:
        assert ledger.epsilon_allocated > 0


def test_a_witness_that_lost_its_last_lines_recovers_nothing_that_a_report_knows(
    path: Path, tmp_path: Path
) -> None:
    """A witness is sealed up to any line, so only a head from outside tells that lines are gone."""
    witness = tmp_path / "witness.json"
    newest = set_back(path, witness)
    kept, before = witness.read_bytes(), path.read_bytes()
    witness.write_bytes(b"".join(kept.splitlines(keepends=True)[:-1]))
    with pytest.raises(
        LedgerCorruptError, match=f"has not seen row {newest.rows}, .* must not be used"
    ):
        administration.recover(path, witness, [newest])
    assert path.read_bytes() == before
    witness.write_bytes(kept)
    with administration.recover(path, witness, [newest]) as ledger:
        assert ledger.epsilon_allocated > 0
        older = path.read_bytes()
        administration.state_distinct(ledger, "another", "somebody")
    path.write_bytes(older)
    with administration.recover(path, witness, [newest]) as ledger:  # a report of before the first
        assert len(ledger.history.lost) > 1


def test_lines_of_two_witnesses_of_a_ledger_are_not_mixed(path: Path, tmp_path: Path) -> None:
    """Each of them was sealed with the key: those of a lost copy, and those of what followed."""
    witness = tmp_path / "witness.json"
    set_back(path, witness)
    older, lost = path.read_bytes(), witness.read_text().splitlines()
    administration.recover(path, witness).close()
    begun = witness.read_text().splitlines()
    path.write_bytes(older)
    for mixed in ([*begun, *lost[len(begun) :]], [begun[0], *lost[1:]], [*begun[:2], *lost[2:]]):
        witness.write_text("".join(f"{line}\n" for line in mixed))
        with pytest.raises(LedgerError, match="is not sealed"):
            administration.recover(path, witness)
    assert path.read_bytes() == older


def test_without_its_key_a_witness_recovers_nothing(path: Path, tmp_path: Path) -> None:
    witness, key = tmp_path / "witness.json", tmp_path / "witness.key"
    set_back(path, witness)
    content = key.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600 and len(content) == 32
    key.unlink()
    with pytest.raises(LedgerError, match=r"witness\.key: the key of the witness can't be used"):
        administration.recover(path, witness)
    assert not key.exists()
    create_secret(key, content[:9])
    with pytest.raises(LedgerError, match="is not the key of a witness, or is damaged"):
        administration.recover(path, witness)
    key.unlink()
    create_secret(key, bytes(32))
    with pytest.raises(LedgerError, match="line 2 is not sealed"):
        administration.recover(path, witness)


def test_a_witness_of_an_older_version_is_sealed_when_its_ledger_is_opened(
    path: Path, tmp_path: Path
) -> None:
    """Its lines had no seals. What they say is believed of no other copy than the newest."""
    witness, older = tmp_path / "witness.json", tmp_path / "older.db"
    with Ledger.create(path, TERMS, witness) as ledger:
        shutil.copy(path, older)
        ledger.commit(PLAN)
    first, *lines = map(json.loads, witness.read_text().splitlines())
    for line in lines:
        del line["seal"]
    witness.write_text("".join(json.dumps(line) + "\n" for line in (first, *lines)))
    (tmp_path / "witness.key").unlink()
    with Ledger.open(path, witness) as ledger:
        take(ledger, 0)
        used = ledger.history.used
    shutil.copy(older, path)
    with administration.recover(path, witness) as ledger:
        assert ledger.history.used == used


def test_what_was_lost_is_never_less_than_nothing(path: Path) -> None:
    """Else a row that says that a copy was lost would be a fresh budget."""
    with with_plan(path) as ledger:
        rows = ledger.rows()
        for lost, refused in (([0.0, 0.0], False), ([0.0, -1.0], True), ([-1e-300, 0.0], True)):
            body = {"rows": 3, "heads": ["d" * 64], "lost": lost}
            told = [*rows, chain.Row(3, "restored", body, "e" * 64)]
            if refused:
                with pytest.raises(LedgerCorruptError, match=r"'restored' .* does not follow"):
                    read_history(told, path)
            else:
                read_history(told, path)


def test_two_copies_share_no_witness(path: Path, tmp_path: Path) -> None:
    witness, copied = tmp_path / "witness.json", tmp_path / "copy.db"
    with Ledger.create(path, TERMS, witness) as ledger:
        ledger.commit(PLAN)
    shutil.copy(path, copied)
    with Ledger.open(path, witness) as ledger:
        with pytest.raises(LedgerInUseError, match="of no copy of it"):
            Ledger.open(copied, witness)
        take(ledger, 0)
        junk = b"#" * witness.stat().st_size
        witness.write_bytes(junk)
        with pytest.raises(LedgerError, match="is not the witness that this ledger left"):
            ledger.reserve("job-1", 1, DIGEST)
        assert witness.read_bytes() == junk


def test_a_commit_that_failed_and_took_effect_is_told_to_the_witness(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a signal arrives, or the folder can't be synced, after the journal is gone."""

    class Interrupted:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self.connection = connection

        def execute(self, statement: str, *values: Any) -> Any:
            done = self.connection.execute(statement, *values)
            if statement == "COMMIT":
                raise KeyboardInterrupt
            return done

        def __getattr__(self, name: str) -> Any:
            return getattr(self.connection, name)

    witness = tmp_path / "witness.json"
    with Ledger.create(path, TERMS, witness) as ledger:
        ledger.commit(PLAN)
        chain, plain = ledger._chain, ledger._chain._connection
        chain._connection = Interrupted(plain)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            ledger.reserve("job-1", 0, DIGEST)
        chain._connection = plain
        assert len(Witness.read(witness).seen) == 2
        take(ledger, 0)  # what was paid for is found, and told first
        assert len(Witness.read(witness).seen) == ledger.head.rows == 3


def test_a_fork_of_the_process_sells_nothing(path: Path) -> None:
    with with_plan(path) as ledger:
        child = os.fork()
        if child == 0:
            try:
                ledger.reserve("job-1", 0, DIGEST)
                os._exit(0)
            except LedgerError:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        take(ledger, 0)


def test_a_relative_path_may_be_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_plan(path).close()
    monkeypatch.chdir(path.parent)
    with Ledger.open(Path(path.name)) as ledger:
        monkeypatch.chdir("/")
        take(ledger, 0)


def test_a_recovery_that_stopped_half_way_charges_once(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stick"
    folder.mkdir()
    witness, backup = folder / "witness.json", tmp_path / "backup.db"
    with Ledger.create(path, replace(TERMS, rule=RdpRule(8)), witness) as ledger:
        ledger.commit(PLAN)
        shutil.copy(path, backup)
        ledger.commit(replace(PLAN, job="job-2"))
        used = ledger.history.used
    shutil.copy(backup, path)
    plain, Witness.start = Witness.start, classmethod(lambda *_: 1 / 0)  # type: ignore
    try:
        with pytest.raises(ZeroDivisionError):
            administration.recover(path, witness)
    finally:
        Witness.start = plain  # type: ignore[method-assign]
    with administration.recover(path, witness) as ledger:
        assert ledger.history.used == pytest.approx(used)
        assert [row.kind for row in ledger.rows()].count("restored") == 1


def test_a_claim_that_was_not_kept_is_not_stated(path: Path, tmp_path: Path) -> None:
    """Both copies took a plan of their own under the rule that knows of one."""
    witness, aside, backup = (tmp_path / name for name in ("w.json", "aside.json", "backup.db"))
    Ledger.create(path, TERMS, witness).close()
    for source, target in ((path, backup), (witness, aside)):
        shutil.copy(source, target)
    with Ledger.open(path, witness) as ledger:
        one = ledger.commit(PLAN)
        take(ledger, 0)
    newer = witness.read_bytes()
    shutil.copy(backup, path)
    shutil.copy(aside, witness)
    with Ledger.open(path, witness) as ledger:
        other = ledger.commit(replace(PLAN, job="job-2", steps=5))
        take(ledger, 0, job="job-2")
    witness.write_bytes(newer)
    with administration.recover(path, witness) as ledger:
        assert ledger.epsilon_committed == pytest.approx(one + other)
        assert ledger.guarantee.startswith("NOT KEPT")
        with pytest.raises(BudgetError):
            ledger.commit(replace(PLAN, job="job-3", steps=1, noise_multiplier=50.0))


def test_a_claim_that_was_missed_by_half_a_percent_is_not_stated(tmp_path: Path) -> None:
    """A plan that two copies had open is counted twice: 201 parts of δ, and 200.4 are allowed."""
    rule, path, witness = SumRule(TERMS.delta / 200.4), tmp_path / "l.db", tmp_path / "w.json"
    plan = replace(PLAN, steps=1, noise_multiplier=60.0)
    aside = [(path, tmp_path / "backup.db"), (witness, tmp_path / "aside.json")]
    with Ledger.create(path, replace(TERMS, rule=rule, budget=50.0), witness) as ledger:
        for job in map("job-{}".format, range(199)):
            ledger.commit(replace(plan, job=job))
            if job != "job-0":
                take(ledger, 0, job=job)
                administration.close_job(ledger, job)
    for source, target in aside:
        shutil.copy(source, target)
    with Ledger.open(path, witness) as ledger:
        ledger.commit(replace(plan, job="lost"))
    newer = witness.read_bytes()
    for target, source in aside:
        shutil.copy(source, target)
    with Ledger.open(path, witness) as ledger:
        take(ledger, 0, job="job-0")
    witness.write_bytes(newer)
    with administration.recover(path, witness) as ledger:
        over = ledger.history.used[1] / ledger.history.limit[1]
        assert 1 < over < 1.01
        assert ledger.guarantee.startswith("NOT KEPT")


def grown(rule: Rule, folder: Path) -> Ledger:
    return Ledger.create(folder / "grown.db", replace(TERMS, rule=rule))


@pytest.mark.parametrize("rule", [RdpRule(12), SumRule(1e-7)])
def test_a_population_that_grew_has_the_claim_at_its_smaller_delta(
    tmp_path: Path, rule: Rule
) -> None:
    path = tmp_path / "grown.db"
    plan = replace(PLAN, noise_multiplier=5.0)
    with grown(rule, tmp_path) as ledger:
        ledger.commit(plan)
        take(ledger, 0)
        before = ledger.epsilon_allocated
        administration.grow(ledger, 200_000, 4e-6)
        after = ledger.terms
    with Ledger.open(path) as ledger:  # read back as it was written
        assert ledger.terms == after and ledger.grown
        assert (after.declared_size, after.delta, after.budget) == (200_000, 4e-6, 4.0)
        assert before <= ledger.epsilon_allocated <= ledger.epsilon_committed <= 4.0
        exact = epsilon_upper([plan.event()], 4e-6)
        assert ledger.epsilon_allocated >= exact * (1 - 1e-9)
        assert ledger.epsilon_spent == epsilon_upper([plan.event(1)], 4e-6)
        assert take(ledger, 1).plan == plan  # and its open plan goes on
        ledger.commit(replace(plan, job="job-2"))


@pytest.mark.parametrize(
    ("rule", "size", "delta", "words"),
    [
        (RdpRule(12), 199, 1e-5, "a size >= 200"),
        (RdpRule(12), 200, 2e-5, "a delta <= 1e-05"),
        (RdpRule(12), 200, 1e-5, "already"),
        (RdpRule(12), 200_000, 1e-5, "< 1 / declared size"),
        (RdpRule(12), 200, 3e-20, "more than the budget"),
        (RdpRule(12), 200, 1e-30, "conversion to δ"),
        (SumRule(6e-6), 200, 5e-6, "delta_per_plan"),
        (SumRule(2e-6), 200, 3e-6, "more than the budget"),
        (PlanRule(), 200, 5e-6, "holds its one plan already"),
    ],
)
def test_what_a_ledger_cannot_keep_it_does_not_promise(
    tmp_path: Path, rule: Rule, size: int, delta: float, words: str
) -> None:
    with grown(rule, tmp_path) as ledger:
        ledger.commit(replace(PLAN, noise_multiplier=1.7))
        if isinstance(rule, SumRule) and rule.delta_per_plan < 5e-6:
            ledger.commit(replace(PLAN, job="job-2", noise_multiplier=3.0))
        before = ledger.rows()
        with pytest.raises(LedgerError, match=words):
            administration.grow(ledger, size, delta)
        assert ledger.rows() == before and ledger.terms.declared_size == 200


def test_delta_is_not_lowered_below_what_ticks_allow_for(tmp_path: Path) -> None:
    for ticks in (False, True):
        (folder := tmp_path / f"{ticks}").mkdir()
        with grown(RdpRule(12), folder) as ledger:
            ledger.commit(replace(PLAN, noise_multiplier=4.0, steps=1, ticks=ticks))
            administration.grow(ledger, 200, 1e-7)
            if ticks:
                with pytest.raises(LedgerError, match="a delta >= 1e-08: the public ticks"):
                    administration.grow(ledger, 200, 9e-9)
            administration.grow(ledger, 200, 1e-8 if ticks else 9e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.one_of(
            st.floats(1.0, 20.0).map(lambda noise: ("commit", noise)),
            st.floats(1e-12, 1e-5).map(lambda delta: ("grow", delta)),
        ),
        max_size=12,
    ),
    st.sampled_from([RdpRule(8), RdpRule(16), SumRule(1e-6)]),
)
def test_however_it_grows_the_claim_holds_for_all_that_was_paid(
    steps: list[tuple[str, float]], rule: Rule
) -> None:
    """The oracle: all plans together by the accountant, at the smallest δ that was promised."""
    events, delta = [], TERMS.delta
    with TemporaryDirectory() as folder, grown(rule, Path(folder)) as ledger:
        for number, (what, value) in enumerate(steps):
            try:
                if what == "commit":
                    plan = replace(PLAN, job=f"job-{number}", noise_multiplier=value)
                    ledger.commit(plan)
                    events.append(plan.event())
                else:
                    administration.grow(ledger, 200 + number, value)
                    delta = value
            except (BudgetError, LedgerError):
                continue
        assert ledger.terms.delta == delta
        if events:
            assert epsilon_upper(events, delta) <= ledger.epsilon_committed <= TERMS.budget


def test_a_statement_has_a_name_and_another_ledger(path: Path) -> None:
    with with_plan(path) as ledger:
        administration.state_distinct(ledger, "1" * 32, " Dr Grey ")
        for other, by in (("0" * 32, "Dr Grey"), ("1" * 32, " "), ("", "Dr Grey")):
            with pytest.raises(LedgerError, match="data set of another ledger and the name"):
                administration.state_distinct(ledger, other, by)
    with Ledger.open(path) as ledger:
        assert ledger.distinct == [("1" * 32, "Dr Grey")]
        assert ledger.rows()[-1].kind == "distinct"


def test_what_was_promised_in_a_lost_copy_is_promised_still(tmp_path: Path) -> None:
    """Else a restored copy would spend at the δ from before it grew."""
    path, witness = tmp_path / "ledger.db", tmp_path / "usb"
    with Ledger.create(path, replace(TERMS, rule=RdpRule(12)), witness) as ledger:
        ledger.commit(replace(PLAN, noise_multiplier=4.0))
        backup = path.read_bytes()
        administration.grow(ledger, 200_000, 1e-6)
        take(ledger, 0)
        limit = ledger.history.limit
    path.write_bytes(backup)
    with administration.recover(path, witness) as ledger:
        assert (ledger.terms.declared_size, ledger.terms.delta) == (200_000, 1e-6)
        assert ledger.grown and ledger.history.limit == limit
    with Ledger.open(path, witness) as ledger:
        assert ledger.terms.delta == 1e-6


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        (RdpRule(12), {"declared_size": 199, "delta": 1e-5}),
        (RdpRule(12), {"declared_size": 200, "delta": 2e-5}),
        (RdpRule(12), {"declared_size": 300_000, "delta": 1e-5}),
        (RdpRule(12), {"declared_size": "300", "delta": 1e-5}),
        (PlanRule(), {"declared_size": 300, "delta": 1e-6}),
    ],
)
def test_a_row_that_takes_a_promise_back_does_not_follow(
    tmp_path: Path, rule: Rule, body: dict[str, Any]
) -> None:
    with grown(rule, tmp_path) as ledger:
        ledger.commit(PLAN)
        rows = ledger.rows()
    history = History(rows[0].kind, rows[0].body)
    history.take(rows[1].kind, rows[1].body)
    with pytest.raises(ValueError, match="does not follow"):
        history.take("grown", body)


HOLDING = """
import ctypes, sys
from pathlib import Path
from fedpriv.privacy.ledger.chain import Chain

def held():
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

chains = [Chain.create(Path(sys.argv[1]) / f"{i}.db", "terms", {}) for i in range(8)]
reply, before = b"r" * 2_000_000, held()
for slot in range(3):
    for chain in chains:
        with chain.transaction():
            chain.put_reply("job", slot, reply, keep=2)
print(held() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc")
def test_a_reply_is_on_disk_and_not_in_memory(fast_folder: Path) -> None:
    """Of eight ledgers, which could keep 2 MB of pages each and the 2 MB that were bound last."""
    command = [sys.executable, "-c", HOLDING, str(fast_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4_000  # kilobytes
