"""Sites that are opened for each message: the same run, whatever process a message comes to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from fedpriv.config.load import load_job
from fedpriv.errors import BusyError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.protocol import Refusal
from fedpriv_server.run_directory import site_folder
from fedpriv_simulation import visits as module
from fedpriv_simulation.inline import FIRST_SITE, InlineGrid
from fedpriv_simulation.simulate import Outcome, Progress, simulate
from fedpriv_simulation.visits import Visits
from fedpriv_strategies.messages import TRAIN

Make = Callable[..., Any]
Before = Callable[[int, Message], None]


def elsewhere(
    file: Path,
    out: Path,
    *overrides: str,
    before: Before = lambda number, message: None,
    **options: Any,
) -> Outcome:
    """A run whose messages go to two processes in turn, as far as these can know."""
    config = load_job(file, overrides)
    processes: Iterator[Visits] = cycle(Visits(config, out, 7) for _ in range(2))
    turn = threading.Lock()

    def asking(number: int) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            before(number, message)
            with turn:
                process = next(processes)
            return process.answer(number, message, context)

        return answer

    apps = {FIRST_SITE + number: asking(number) for number in range(len(config.sites))}
    with InlineGrid(apps, 2) as grid:
        return simulate(config, out, source=file, insecure_seed=7, grid=grid, **options)


def adapter_bytes(outcome: Outcome) -> bytes:
    return (outcome.run.path / "adapter" / "adapter_model.safetensors").read_bytes()


def states(outcome: Outcome) -> list[set[str]]:
    return [{site["status"] for site in row["sites"].values()} for row in outcome.rounds]


@pytest.mark.slow
def test_visits_make_what_open_sites_make(federation: Make, tmp_path: Path) -> None:
    file = federation(rounds=3, sites=3)
    there = simulate(load_job(file), tmp_path / "open", source=file, insecure_seed=7)
    found = elsewhere(file, tmp_path / "visits", "job.engine=ray")  # the grid that is there counts
    assert states(found) == [{"ok"}] * 3
    assert adapter_bytes(found) == adapter_bytes(there)
    assert {name: (b.epsilon_spent, len(b.events)) for name, b in found.budgets.items()} == {
        name: (b.epsilon_spent, len(b.events)) for name, b in there.budgets.items()
    }
    assert "NOT PRIVATE" in found.report.read_text()
    assert not list((tmp_path / "visits" / "private").glob("*/cache"))  # no clear text is left


@pytest.mark.slow
def test_the_synthetic_set_goes_with_its_site(federation: Make, tmp_path: Path) -> None:
    """It is sent once, and whichever process answers next has it."""
    public = tmp_path / "public.jsonl"
    rows = [{"note": f"public words number {i} of many"} for i in range(9)]
    public.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = federation(rounds=3)
    set_ = ("job.method=pe-sgd", "synthetic.size=6", f"synthetic.data={public}")
    there = simulate(load_job(file, set_), tmp_path / "open", source=file, insecure_seed=7)
    found = elsewhere(file, tmp_path / "visits", *set_)
    assert states(found) == [{"ok"}] * 3
    assert adapter_bytes(found) == adapter_bytes(there)
    assert [row["bytes_down"] for row in found.rounds] == [
        row["bytes_down"] for row in there.rounds
    ]


@pytest.mark.slow
def test_a_message_waits_for_the_process_that_has_the_ledger(
    federation: Make, tmp_path: Path
) -> None:
    out, held = tmp_path / "run", threading.Event()

    def hold(number: int, message: Message) -> None:
        if number == 0 and message.metadata.message_type == TRAIN and not held.is_set():
            held.set()
            ledger = Ledger.open(site_folder(out, "site-0") / "ledger.db")
            threading.Timer(0.5, ledger.close).start()

    found = elsewhere(federation(rounds=2), out, before=hold)
    assert held.is_set()
    assert states(found) == [{"ok"}] * 2


@pytest.mark.slow
def test_a_message_that_waited_in_vain_is_refused_for_now_and_pays_nothing(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    out = tmp_path / "run"
    kept: list[Ledger] = []

    def hold(number: int, message: Message) -> None:
        if number == 0 and message.metadata.group_id == "1":
            kept.append(Ledger.open(site_folder(out, "site-0") / "ledger.db"))

    def release(metrics: dict[str, Any]) -> None:
        while kept:
            kept.pop().close()

    found = elsewhere(
        federation(rounds=2),
        out,
        "job.min_sites=1",
        before=hold,
        progress=Progress(round_done=release),
    )
    refused, answered = (row["sites"]["site-0"]["status"] for row in found.rounds)
    assert refused == f"refused: {Refusal.of(BusyError('')).reason}"
    assert answered == "ok"
    assert [event.count for event in found.budgets["site-0"].events] == [1]


def test_of_what_goes_wrong_only_its_kind_is_told(federation: Make, tmp_path: Path) -> None:
    """Flower would send the text of an exception to the server."""
    file = federation(rounds=1)
    records = Path(load_job(file).sites[0].data)
    kept, spoilt = records.read_text(), "Jane-Doe-1956"

    def spoil(number: int, message: Message) -> None:
        if number == 0 and message.metadata.message_type == TRAIN:
            records.write_text(spoilt)

    mend = Progress(round_done=lambda metrics: records.write_text(kept) and None)
    found = elsewhere(file, tmp_path / "run", "job.min_sites=1", before=spoil, progress=mend)
    assert found.rounds[0]["sites"]["site-0"]["status"] == "refused: config (ConfigError)"
    assert found.budgets["site-0"].events == ()
