"""What a server keeps of the reports that sites send."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.errors import FedprivError, ProtocolError
from fedpriv.report.budget import BudgetReport, sign
from fedpriv_server.owed import _report


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
