"""One run with many canaries at a site with a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.privacy.mechanism import execution
from fedpriv.private_training.pool import WorkerPool
from fedpriv_audit.made_up_site import Server
from fedpriv_audit.one_run import audit
from fedpriv_audit.single_run import OneRunSize, audit_one_run, estimate, one_run_plan
from tests.audit.audited import federation

CLAIMED = OneRunSize(120, worlds=(("as-claimed", 1.0),))


def test_vectors_of_others_are_accounted_for() -> None:
    """Canaries that all point nearly the same way, through a noise that is small beside them."""
    rng = np.random.default_rng(0)
    common, own = rng.normal(size=400), rng.normal(size=(100, 400))
    vectors = 3 * common + own
    inside = rng.random(100) < 0.5
    mean = inside @ vectors + 2 * rng.normal(size=400)
    gram = vectors @ vectors.T
    assert audit(estimate(vectors, gram, mean, 2.0), inside, 1e-5).epsilon_lower > 1.5
    assert audit(vectors @ mean, inside, 1e-5).epsilon_lower < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["as claimed", "a hundredth"])
def test_a_run_is_caught_if_its_site_adds_too_little_noise_and_not_otherwise(
    noise: str,
    tmp_path: Path,
    model_folder: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if noise == "a hundredth":
        whole = execution.deviation
        monkeypatch.setattr(execution, "deviation", lambda *a: whole(*a) / 100)
    config = federation(model_folder("llama"), "lora.r=16")
    server = Server(config, one_run_plan(CLAIMED.canaries), WorkerPool())
    part = audit_one_run(server, tmp_path, CLAIMED)
    [world] = part.worlds
    assert part.holds == (noise == "as claimed")
    assert world.trials["canaries"] == CLAIMED.canaries
    assert world.trials["correct"] <= world.trials["guesses"]
