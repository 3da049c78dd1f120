"""A secure sum between real processes: it trains, it survives them, and a liar learns nothing."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedpriv.commands.roster import app as roster_commands
from fedpriv.config.load import load_site
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.report.budget import read as read_report
from fedpriv.secure_sum.roster import read
from fedpriv_client.settings import ledgers
from tests.network.network_federation import ROUNDS, Federation
from tests.network.network_processes import KILLED

pytestmark = pytest.mark.slow
SITES, SPARE = 3, 2


def share(federation: Federation) -> None:
    """Make a roster as its administrators do, and let every site pin it."""
    entries = [federation.folder / f"site-{index}.roster.json" for index in range(SITES)]
    for index, entry in enumerate(entries):
        answer = federation.ask(index, "roster-entry", "--out", str(entry))
        assert answer.exit_code == 0, answer.output
    path = federation.folder / "roster.json"
    made = CliRunner().invoke(roster_commands, ["make", *map(str, entries), "--out", str(path)])
    assert made.exit_code == 0, made.output
    for index in range(SITES):
        file = federation.site_file(index)
        shutil.copy(path, file.with_name("roster.json"))
        federation.change(file, "epsilon = 20.0", "epsilon = 20.0\nepsilon_alone = 99.0")
        federation.change(file, f"max_steps = {ROUNDS}", f"max_steps = {ROUNDS + SPARE}")
        pinned = f'[secure_sum]\nroster = "roster.json"\ndigest = "{read(path).digest}"\n'
        file.write_text(f"{file.read_text()}\n{pinned}")
    federation.change(
        federation.file,
        "[privacy]\n",
        f'[privacy]\ntrust = "secure-sum"\nroster = "{path}"\nspare_slots = {SPARE}\n',
    )
    federation.only(SITES, needed=SITES)


@pytest.fixture
def federation(origin: Path, tmp_path: Path, context: Any) -> Iterator[Federation]:
    folder = tmp_path / "federation"
    shutil.copytree(origin, folder)
    made = Federation(folder, context)
    share(made)
    for index in range(SITES):
        made.init(index)
    yield made
    made.stop()


def rows_of(federation: Federation, index: int) -> list[Any]:
    """What a site's ledger says of slots, in order: kind, slot and tag."""
    (path,) = ledgers(load_site(federation.site_file(index))).values()
    with Ledger.open(path, reading=True) as ledger:
        return [
            (row.kind, row.body["slot"], row.body.get("tag"))
            for row in ledger.rows()
            if row.kind in ("reserve", "release")
        ]


def slots_of(federation: Federation, index: int) -> dict[int, bool]:
    """Those that a site reserved, once each, and whether they were released."""
    rows = rows_of(federation, index)
    assert max(Counter(row[:2] for row in rows).values(), default=1) == 1
    released = {slot for kind, slot, _ in rows if kind == "release"}
    return {slot: slot in released for kind, slot, _ in rows if kind == "reserve"}


def tags(federation: Federation, slot: int) -> set[str]:
    """Of that slot at all sites; one if all were told the same."""
    rows = [row for index in range(SITES) for row in rows_of(federation, index)]
    return {tag for kind, of, tag in rows if (kind, of) == ("release", slot)}


def start(federation: Federation, fault: str = "") -> Any:
    """A server, with that fault, and all sites."""
    server = federation.server(fault)
    for index in range(SITES):
        federation.client(index)
    return server


def test_a_job_adds_up(federation: Federation) -> None:
    federation.finish(start(federation))
    for index in range(SITES):
        assert federation.states(index) == ["ok"] * ROUNDS
        assert slots_of(federation, index) == dict.fromkeys(range(ROUNDS), True)
        report = read_report(federation.out / "sites" / f"site-{index}" / "budget.json")
        assert report.max_colluding == 1
        assert report.epsilon_alone_spent is not None
        assert 0 < report.epsilon_spent < report.epsilon_alone_spent
    assert [len(tags(federation, slot)) for slot in range(ROUNDS)] == [1] * ROUNDS


@pytest.mark.parametrize(
    ("fault", "struck"),
    [("told", {}), ("amid-share", {1: False}), ("after-release", {1: True})],
)
def test_a_client_that_is_killed_pays_and_releases_once(
    federation: Federation, fault: str, struck: dict[int, bool]
) -> None:
    """With its key gone the slot is void for all; what it had released it sends again."""
    server = federation.server()
    client = federation.client(0, fault)
    federation.client(1)
    federation.client(2)
    assert client.wait() == KILLED
    assert slots_of(federation, 0) == {0: True} | struck
    federation.client(0)
    federation.finish(server)
    kept = fault == "after-release"
    last = ROUNDS if kept else ROUNDS + 1
    later = dict.fromkeys(range(2, last), True)
    assert slots_of(federation, 0) == {0: True} | struck | later
    for index in (1, 2):
        assert slots_of(federation, index) == dict.fromkeys(range(last), True)
    assert len(tags(federation, 1)) == 1
    assert ("Slot 1 is void and stays paid" in server.text) is not kept


@pytest.mark.parametrize("fault", ["server-set-kept", "server-set-sent"])
def test_a_server_that_is_killed_asks_for_the_same_set_again(
    federation: Federation, fault: str
) -> None:
    server = start(federation, fault)
    assert server.wait() == KILLED
    kept = json.loads((federation.out / "checkpoint" / "sum.json").read_text())
    assert (kept["slot"], len(kept["request"]["members"])) == (1, SITES)
    again = federation.server()
    federation.finish(again)
    for index in range(SITES):
        assert slots_of(federation, index) == dict.fromkeys(range(ROUNDS), True)
    assert len(tags(federation, 1)) == 1
    assert "is void" not in again.text


@pytest.mark.parametrize(
    ("lie", "refusal"),
    [
        ("lie-substituted", "wrong-set (SetError)"),
        ("lie-invented", "wrong-set (SetError)"),
        ("lie-two-vectors", "wrong-set (SetError)"),
        ("lie-roster", "roster (LimitError)"),
        ("lie-count", "roster (LimitError)"),
        ("lie-colluding", "max-colluding (LimitError)"),
    ],
)
def test_a_coordinator_that_lies_gets_a_refusal_and_nothing_else(
    federation: Federation, lie: str, refusal: str
) -> None:
    federation.change(federation.file, f"spare_slots = {SPARE}", "spare_slots = 0")
    server = start(federation, lie)
    assert server.wait() == 5
    assert refusal in server.text
    federation.stop()
    for index in range(SITES):
        assert slots_of(federation, index) == {}
        assert "Traceback" not in federation.commands[1 + index].text


def test_a_site_that_is_left_out_of_its_own_set_releases_nothing(federation: Federation) -> None:
    """The others may add up without it."""
    federation.change(federation.file, f"spare_slots = {SPARE}", "spare_slots = 0")
    server = start(federation, "lie-omitted")
    assert server.wait() == 5
    assert "site-0: It refused its share: wrong-set (SetError)" in server.text
    federation.stop()
    assert slots_of(federation, 0) == {}


def test_a_slot_has_one_set_for_ever(federation: Federation) -> None:
    federation.change(federation.file, f"spare_slots = {SPARE}", "spare_slots = 0")
    server = start(federation, "lie-two-sets")
    assert server.wait() == 5
    assert "refused its share: slot (SlotError)" in server.text
    federation.stop()
    for index in range(SITES):
        assert slots_of(federation, index) == {0: True}
    assert len(tags(federation, 0)) == 1
