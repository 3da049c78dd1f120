"""What is shown in a session of Python is a line that a person reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import fedpriv
from fedpriv.config.load import EMBEDDED
from fedpriv.one_line import LONGEST, one_line
from fedpriv.plain_training.scores import Scores
from fedpriv.privacy.ledger.plan import Plan
from fedpriv_comparison.from_python import Comparison
from fedpriv_simulation.from_python import Simulation


@dataclass
class Shown:
    value: Any
    other: Any = 1

    __repr__ = one_line


@given(st.text() | st.binary() | st.floats() | st.lists(st.text()) | st.integers(), st.text())
def test_it_is_one_line_whatever_is_in_it(value: Any, other: str) -> None:
    shown = repr(Shown(value, other))
    assert len(shown) <= LONGEST and "\n" not in shown and shown.startswith("Shown(value=")


def test_what_is_large_is_counted_and_not_shown() -> None:
    assert repr(Shown([{"text": "secret"}] * 3, 2.0)) == "Shown(value=<list of 3>, other=2)"


def test_public_objects_are_a_line() -> None:
    here, rows = Path("runs") / "a", [{"round": 1, "eval_loss": 3.0}] * 60
    job = fedpriv.load_job()
    planned = fedpriv.plan(epsilon=4, delta=1e-5, sample_rate=0.05, steps=100)
    for made, words in (
        (job, f"'{job.job.name}', dp-lora with 'embedded', {job.job.rounds} rounds, 64 sites"),
        (Simulation(here, rows, {}, False, here, {}, here), "metrics=<list of 60>"),
        (Comparison(rows, here), "rows=<list of 60>"),
        (fedpriv.forecast(EMBEDDED), "sites=64"),
        (Plan("a", "dp-lora", 0.1, 1.0, 0.1, 100, "sha256:" + "0" * 64), "steps=100"),
        (planned, "noise_multiplier=0.9"),
        (Scores(1.0, 0.5), "eval_loss=1.0"),
    ):
        for shown in (repr(made), str(made)):
            assert words in shown and len(shown) <= LONGEST and "\n" not in shown
