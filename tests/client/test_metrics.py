"""What a site says of itself to Prometheus: public, and nothing that records move."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from fedpriv.metrics import registry_of
from fedpriv.process import Status
from fedpriv_client.account import write_account
from fedpriv_client.metrics import FIGURES, site_figures
from fedpriv_client.orders import Orders
from fedpriv_client.report import write_budget_report
from tests.client.client_setting import Setting, request
from tests.client.page_setting import PROPOSAL, Place

Make = Callable[..., Any]


def exposition(place: Place) -> str:
    text: bytes = generate_latest(registry_of(lambda: site_figures(place.file, place.config)))
    return text.decode()


def lines(place: Place) -> list[str]:
    return [line for line in exposition(place).splitlines() if not line.startswith("#")]


def test_a_site_says_its_budget_its_jobs_and_its_slots(tmp_path: Path) -> None:
    place = Place(tmp_path, alone=60.0).with_history()
    with place.ledger() as ledger:
        write_account(ledger, place.settings)
        spent, alone = ledger.epsilon_spent, ledger.epsilon_alone_allocated
    Status(place.state, connection="connected")
    Orders.change(place.state, lambda stands: stands.model_copy(update={"paused": True}))
    found = lines(place)
    for line in (
        "fedpriv_site_connected 1.0",
        "fedpriv_site_paused 1.0",
        'fedpriv_site_jobs{state="waits for approval"} 1.0',
        'fedpriv_site_jobs{state="refused"} 1.0',
        'fedpriv_site_jobs{state="begun"} 1.0',
        'fedpriv_site_jobs{state="finished"} 1.0',
        'fedpriv_site_jobs{state="closed"} 0.0',
        'fedpriv_site_epsilon_budget{claim="trust"} 12.0',
        'fedpriv_site_epsilon_budget{claim="alone"} 60.0',
        f'fedpriv_site_epsilon_spent{{claim="trust"}} {spent!r}',
        f'fedpriv_site_epsilon_allocated{{claim="alone"}} {alone!r}',
        "fedpriv_site_slots_paid_total 42.0",
        "fedpriv_site_slots_released_total 42.0",
        "fedpriv_site_delta 1e-05",
    ):
        assert line in found
    assert {line.partition("{")[0].partition(" ")[0] for line in found} == {
        figure.name for figure in FIGURES
    }


def test_before_its_ledger_is_open_a_site_says_only_whether_it_is_there(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert lines(place) == ["fedpriv_site_connected 0.0", "fedpriv_site_paused 0.0"]
    (place.state / "orders.json").write_text("{")
    assert lines(place) == ["fedpriv_site_connected 0.0"]


@pytest.mark.parametrize("changed", ["one less", "one more", "another text", "no text"])
def test_no_figure_is_computed_from_records(
    tmp_path: Path, model_folder: Make, changed: str
) -> None:
    """Two populations that differ in one record say the same, to the last byte."""
    said = []
    for population in ("", changed):
        folder = tmp_path / (population or "as it is")
        folder.mkdir()
        said.append(_said(folder, model_folder("llama"), population))
    assert said[0] == said[1]
    assert "fedpriv_site_slots_released_total 2.0" in said[0]


def _said(folder: Path, model: Path, changed: str) -> str:
    """All figures of a site after two steps over a population."""
    place = Place(folder)
    setting = Setting(folder, model)
    rows = [json.loads(line) for line in setting.data.read_text().splitlines()]
    match changed:
        case "one less":
            del rows[5]
        case "one more":
            rows.append({"note": "somebody else"})
        case "another text":
            rows[5] = {"note": "a text that is longer than it was before " * 9}
        case "no text":
            rows[5] = {"note": ""}
    setting.data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    terms, ledger = place.settings.terms, place.settings.ledger
    site = setting.site(terms, ledger=ledger, server="localhost:8443")
    site.consider(setting.proposal)
    for slot in range(2):
        site.step(request(slot), setting.vector)
        write_budget_report(site, "job-1")
    said = exposition(place)
    site.close()
    return said


def test_a_proposal_that_was_only_made_is_counted(tmp_path: Path) -> None:
    place = Place(tmp_path, approve="automatic")
    place.propose(PROPOSAL)
    with place.ledger() as ledger:
        write_account(ledger, place.settings)
    assert 'fedpriv_site_jobs{state="not begun"} 1.0' in lines(place)
