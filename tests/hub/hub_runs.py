"""Signed budget reports of made-up sites, for the run directories that conftest.py makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.report import budget
from fedpriv.report.budget import BudgetReport

MakeRun = Callable[..., Any]  # the run directory, and a worker whose model is the trained one
KEY = Ed25519PrivateKey.generate()


def report(site: str, **changes: Any) -> BudgetReport:
    """A report of that site, as it signs one."""
    fields: dict[str, Any] = {
        "site": site,
        "dataset_id": f"{sum(site.encode()):032x}",
        "unit": "record",
        "max_records_per_unit": 1,
        "delta": 1e-5,
        "declared_size": 250,
        "accountant": "PRV, upper bound",
        "assumptions": ("The ledger was not rolled back.",),
        "private": True,
        "simulated": False,
        "guarantee": "the one plan of this ledger in full",
        "epsilon_spent": 2.0004,
        "epsilon_allocated": 3.0004,
        "epsilon_committed": 3.0004,
        "budget": 4.0,
        "ledger_head": "0" * 64,
        "ledger_rows": 9,
        "job": "job-1",
    }
    return budget.sign(BudgetReport(**fields | changes), KEY)
