"""What a server keeps of the reports that sites send."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Message, RecordDict

from fedpriv.errors import FedprivError, ProtocolError
from fedpriv.protocol import BODY, Refusal
from fedpriv.report.budget import BudgetReport, sign
from fedpriv_server.owed import _report, collect_reports
from fedpriv_server.run_directory import RunDirectory
from fedpriv_strategies.messages import body_of
from tests.strategies.asked_grid import AskedGrid


def report(**changes: Any) -> str:
    figures: dict[str, Any] = {
        "site": "a", "dataset_id": "0" * 32, "unit": "record", "max_records_per_unit": 1,
        "delta": 1e-5, "declared_size": 100, "accountant": "prv", "private": True,
        "simulated": False, "guarantee": "all", "epsilon_spent": 1.0, "epsilon_allocated": 2.0,
        "epsilon_committed": 4.0, "budget": 4.0, "ledger_head": "0" * 64, "ledger_rows": 3,
        "job": "j",
    }  # fmt: skip
    made = sign(BudgetReport(**(figures | changes)), Ed25519PrivateKey.generate())
    return made.model_dump_json()


def test_a_report_of_that_site_and_job_is_kept() -> None:
    assert _report(report(), "a", "j").epsilon_committed == 4.0


ALONE: dict[str, Any] = {
    "epsilon_alone_spent": 5.0,
    "epsilon_alone_allocated": 6.0,
    "epsilon_alone_committed": 7.0,
    "budget_alone": 7.0,
}


def test_a_report_of_both_claims_is_kept() -> None:
    assert _report(report(**ALONE), "a", "j").epsilon_alone_committed == 7.0


@pytest.mark.parametrize(
    "lie",
    [
        {"site": "b"},
        {"job": "k"},
        {"epsilon_spent": 1e30},
        {"epsilon_committed": 1e30},
        {"budget": 1e300},
        ALONE | {"budget_alone": 1e300},
        ALONE | {"epsilon_alone_spent": 1e30},
    ],
)
def test_a_report_of_another_or_of_what_nobody_has_is_not(lie: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        _report(report(**lie), "a", "j")


@pytest.mark.parametrize(
    "body",
    [None, "", "{", "[]", report()[:-2] + "1}"],
    ids=["none", "empty", "cut off", "a list", "changed"],
)
def test_what_is_no_report_is_a_typed_error(body: object) -> None:
    with pytest.raises(FedprivError):
        _report(body, "a", "j")


def test_a_changed_report_is_not_kept() -> None:
    with pytest.raises(FedprivError):
        _report(report().replace('"declared_size":100', '"declared_size":101'), "a", "j")


class OfTwoVersions(AskedGrid):
    """A grid with one site that knows of `life`, and one that refuses a field that it doesn't."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, bool]] = []

    def get_node_ids(self) -> Iterable[int]:
        return [1, 2]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        asked = list(messages)
        for number, item in enumerate(asked):
            item.metadata.__dict__["_message_id"] = f"{len(self.asked)}.{number}"
        return [self.answer(item) for item in asked]

    def answer(self, item: Message) -> Message:
        node, request = item.metadata.dst_node_id, json.loads(str(body_of(item)))
        self.asked.append((node, "life" in request))
        refused = Refusal(refused="protocol", kind="ProtocolError").model_dump_json()
        knows = node == 1 or "life" not in request
        body = report(site="ab"[node - 1]) if knows else refused
        return Message(RecordDict({BODY: ConfigRecord({"body": body})}), reply_to=item)


def test_a_site_of_an_older_version_is_asked_in_its_own_words(tmp_path: Path) -> None:
    run = SimpleNamespace(info={"job_id": "j"}, path=tmp_path)
    grid = OfTwoVersions()
    missing = collect_reports(grid, cast(RunDirectory, run), {1: "a", 2: "b"})
    assert missing == []
    assert grid.asked == [(1, True), (2, True), (2, False)]
    assert (tmp_path / "sites" / "b" / "budget.json").exists()
