"""Whether sites can pay for a job, as far as their last reports say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import BudgetError
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Terms
from fedpriv.privacy.ledger.rules import RdpRule
from fedpriv.report import received
from fedpriv.report.budget import BudgetReport
from fedpriv_server.affordable import _cost, check_affordable, last_reports
from tests.server.test_job_queue import job


def told(site: str, rule: str = "rdp", **changes: Any) -> BudgetReport:
    figures: dict[str, Any] = {
        "site": site, "dataset_id": "0" * 32, "unit": "record", "max_records_per_unit": 1,
        "delta": 1e-5, "declared_size": 100, "accountant": "prv", "private": True,
        "simulated": False, "guarantee": "all", "epsilon_spent": 0.0, "epsilon_allocated": 0.0,
        "epsilon_committed": 12.0, "budget": 12.0, "ledger_head": "0" * 64, "ledger_rows": 3,
        "job": "j", "rule": rule,
    }  # fmt: skip
    return BudgetReport(**(figures | changes))


def test_a_job_that_too_few_can_pay_for_is_refused_with_the_figures(tmp_path: Path) -> None:
    config, _ = job(tmp_path)
    full = {"epsilon_allocated": 12.0}
    check_affordable(config, [])
    check_affordable(config, [told("a"), told("b")])
    check_affordable(config, [told("a", **full), told("b")])  # one is enough
    check_affordable(config, [told("a", **full), told("c", **full)])  # b may have all of it
    with pytest.raises(
        BudgetError, match=r"a has ε = 0.000 left and needs .*, b has ε = 0.000 left"
    ):
        check_affordable(config, [told("a", **full), told("b", **full)])
    for rule, left in (("sum", 11.99), ("plan", 3.0)):
        with pytest.raises(BudgetError, match="0 sites can pay"):
            check_affordable(config, [told(s, rule, epsilon_allocated=left) for s in "ab"])


def test_a_filter_is_charged_what_a_ledger_of_it_charges(tmp_path: Path) -> None:
    config, _ = job(tmp_path)
    privacy = config.privacy
    noise = calibrate_noise(privacy.epsilon, 1e-5, privacy.sample_rate, config.slots)
    rule = RdpRule.best(40.0, 1e-5)
    terms = Terms("0" * 32, 100, "record", 1, 1e-5, 40.0, simulated=True, rule=rule)
    figures = (privacy.sample_rate, noise, privacy.clip_norm, config.slots)
    with Ledger.create(tmp_path / "ledger.db", terms) as ledger:
        allocated = []
        for name in ("x", "y"):
            ledger.commit(Plan(name, "dp-lora", *figures, "sha256:" + "0" * 64))
            allocated.append(ledger.epsilon_allocated)
    cost = _cost(config, told("a", budget=40.0))
    assert allocated[1] - allocated[0] == pytest.approx(cost, rel=1e-9)


def test_the_newest_report_of_a_site_counts(tmp_path: Path) -> None:
    for number, rows in ((1, 9), (2, 30), (3, 4)):
        folder = tmp_path / "runs" / str(number) / "sites" / "a"
        folder.mkdir(parents=True)
        received.write(told("a", ledger_rows=rows), folder / "budget.json")
    (tmp_path / "runs" / "3" / "sites" / "b").mkdir()
    (tmp_path / "runs" / "3" / "sites" / "b" / "budget.json").write_text("{")
    assert {name: one.ledger_rows for name, one in last_reports(tmp_path).items()} == {"a": 30}
