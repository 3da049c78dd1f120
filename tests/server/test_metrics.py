"""What a server says of its job to Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from fedpriv.metrics import registry_of
from fedpriv.process import Status
from fedpriv_server.metrics import FIGURES, RunFigures


def site(status: str, **epsilon: float | None) -> dict[str, Any]:
    return {"status": status, "noise_multiplier": 1.0, **epsilon}


ROW = {
    "round": 4,
    "bytes_up": 1000,
    "bytes_down": 500,
    "eval_loss": 4.5,
    "eval_accuracy": 0.2,
    "seconds": 1.5,
    "held_out": None,
    "sites": {
        "surgery": site("ok", epsilon_spent=1.5, epsilon_committed=12.0),
        "radiology": site("no reply", epsilon_spent=None, epsilon_committed=None),
    },
}


def exposition(figures: RunFigures) -> list[str]:
    text = generate_latest(registry_of(figures)).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_server_says_how_far_it_is_and_which_sites_answer(tmp_path: Path) -> None:
    figures = RunFigures(tmp_path, 30)
    there = {"surgery": {"there": True}, "radiology": {"there": False}}
    Status(tmp_path, state="running", sites=there)
    assert not any(line.startswith("fedpriv_server_round ") for line in exposition(figures))
    figures.round_done({**ROW, "round": 3})
    figures.round_done(ROW)
    found = exposition(figures)
    for line in (
        'fedpriv_server_state{state="running"} 1.0',
        'fedpriv_server_state{state="waiting"} 0.0',
        "fedpriv_server_round 4.0",
        "fedpriv_server_rounds 30.0",
        'fedpriv_server_site_there{site="surgery"} 1.0',
        'fedpriv_server_site_there{site="radiology"} 0.0',
        'fedpriv_server_site_answered{site="surgery"} 1.0',
        'fedpriv_server_site_answered{site="radiology"} 0.0',
        'fedpriv_server_site_epsilon_spent{site="surgery"} 1.5',
        'fedpriv_server_site_epsilon_committed{site="surgery"} 12.0',
    ):
        assert line in found
    assert {line.partition("{")[0].partition(" ")[0] for line in found} == {
        figure.name for figure in FIGURES
    }


def test_how_good_the_model_is_and_how_long_it_took_is_not_said(tmp_path: Path) -> None:
    Status(tmp_path, state="running", sites={})
    said = []
    for changed in ({}, {"eval_loss": 9.0, "eval_accuracy": 0.9, "seconds": 99.0, "held_out": {}}):
        figures = RunFigures(tmp_path, 30)
        figures.round_done({**ROW, **changed})
        said.append(exposition(figures))
    assert said[0] == said[1]
