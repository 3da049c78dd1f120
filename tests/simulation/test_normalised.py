"""Whole runs with `privacy.normalise`, in both trust models and with local steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError
from fedpriv_server.checkpoint import Checkpoint
from fedpriv_simulation.simulate import Outcome, simulate

Make = Callable[..., Any]
NORMALISE = "privacy.normalise=adapters"


def run(file: Path, out: Path, *overrides: str) -> Outcome:
    return simulate(load_job(file, overrides), out, source=file, insecure_seed=3)


def moved(out: Path) -> Any:
    kept = Checkpoint.read(out / "checkpoint" / "latest.safetensors")
    return kept.tensors.value["vector"].numpy()


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((), id="plain"),
        pytest.param(("denoise.where=server",), id="denoised", marks=pytest.mark.slow),
        pytest.param(("job.sync=2", "job.rounds=2"), id="local steps", marks=pytest.mark.slow),
        pytest.param(("privacy.trust=secure-sum",), id="secure sum", marks=pytest.mark.slow),
    ],
)
def test_it_trains_otherwise_and_costs_the_same(
    federation: Make, tmp_path: Path, others: tuple[str, ...]
) -> None:
    file = federation()
    plain, found = (
        run(file, tmp_path / name, *others, *more)
        for name, more in (("plain", ()), ("normalised", (NORMALISE,)))
    )
    assert not np.allclose(moved(tmp_path / "plain"), moved(tmp_path / "normalised"), rtol=0.01)
    for site, report in plain.budgets.items():
        assert found.budgets[site].epsilon_spent == report.epsilon_spent > 0


def test_a_method_without_gradients_of_adapters_is_refused_before_anything_is_spent(
    federation: Make, tmp_path: Path
) -> None:
    file = federation()
    (file.parent / "made-up.jsonl").write_text('{"note": "public words"}\n' * 4)
    others = ("job.method=pe-sgd", "synthetic.data=made-up.jsonl", "synthetic.size=4")
    with pytest.raises(ConfigError, match=r"privacy\.normalise.*is not for method 'pe-sgd'"):
        run(file, tmp_path / "run", NORMALISE, *others)
    assert not list(tmp_path.rglob("ledger.db"))
