"""A job beside a base in few bits, from its file to what others load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.adapter_facts import read_facts
from fedpriv.config.load import load_job
from fedpriv.hub.export import Wanted, export
from fedpriv.models.digest import quantised_digest
from fedpriv.models.stored import digest_of
from fedpriv_simulation.simulate import simulate

Make = Callable[..., Any]


@pytest.mark.nightly
@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_it_says_so_all_the_way_and_learns(federation: Make, tmp_path: Path, numerics: str) -> None:
    overrides = [
        "model.quantize=4bit",
        "privacy.epsilon=5000",
        "privacy.sample_rate=1.0",
        f"privacy.numerics={numerics}",
        "optimizer.lr=0.05",
    ]
    file, out = federation(rounds=10), tmp_path / "run"
    outcome = simulate(load_job(file, overrides), out, source=file, insecure_seed=1)
    assert outcome.rounds[-1]["eval_loss"] < outcome.baseline.eval_loss - 0.02
    facts = read_facts(out / "adapter")
    assert facts.proposal.model.quantize == "4bit"
    digest = quantised_digest(digest_of(facts.proposal.model.name), "4bit")
    found = json.loads((out / "run.json").read_text())
    assert found["model"]["digest"] == facts.proposal.base_digest == digest
    export(out, tmp_path / "merged", Wanted(merge=True))
    assert "rounded to 4 bits" in " ".join((tmp_path / "merged" / "README.md").read_text().split())
