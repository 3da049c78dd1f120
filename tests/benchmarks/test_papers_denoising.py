"""The rows of `benchmarks/papers_denoising.py` do what they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import papers_denoising as papers
import papers_training

SIZE = 487


def test_a_mean_of_gradients_has_the_deviation_that_it_is_denoised_with() -> None:
    seen: dict[int, list[float]] = {1: [], 4: [], 12: []}
    told: dict[int, float] = {}

    class Denoiser:
        def __call__(self, mean: Any, deviation: float) -> Any:
            told[step] = deviation
            vector = mean.value
            return type("D", (), {"value": vector})

    drawn = np.random.default_rng(0)
    for _ in range(60):
        move = papers.Momentum(1.0, 0.3, Denoiser())  # type: ignore[arg-type]
        for step in range(1, 13):
            noise = (0.3 * drawn.standard_normal(SIZE)).astype(np.float32)
            _, mean = move(np.zeros(SIZE, np.float32), noise, step)
            if step in seen:
                seen[step].append(float(mean.std()))
    for step, deviations in seen.items():  # of 60 × 487 draws: within 1/√(2 · 29,220) = 0.4%
        assert np.mean(deviations) == pytest.approx(told[step], rel=0.02)


@pytest.mark.parametrize(("best", "ends"), [(3e-3, False), (1e-4, False), (1e-9, True)])
def test_rates_go_on_until_the_best_is_inside(best: float, ends: bool) -> None:
    class Training:
        ROWS: ClassVar = {"plain": (1e-3, 3e-3, 1e-2)}
        point = papers_training.Point("descriptions", 2, 1.0, steps=2)
        choosing = None

        def run(self, row: str, rate: float, seed: int, scored: Any) -> dict[str, Any]:
            return {"losses": {"2": abs(np.log(rate / best))}}

    tried = papers_training.tuned(Training(), "plain")  # type: ignore[arg-type]
    found = min(tried, key=lambda rate: tried[rate])
    order = sorted(tried, key=float)
    assert (found in (order[0], order[-1])) == ends
    assert len(tried) <= papers_training.MOST_RATES


def test_a_run_that_is_kept_is_not_done_again(tmp_path: Path) -> None:
    class Training(papers_training.Training):
        runs = 0

        def __init__(self) -> None:
            self._kept = tmp_path

        def stepper(self, *_: Any) -> Any:
            raise NotImplementedError

        def _run(self, *_: Any) -> dict[str, Any]:
            self.runs += 1
            return {"losses": {2: 1.5}}

    training = Training()
    found = [training.run("plain", 1e-3, seed, []) for seed in (1, 1, 2)]
    assert found == [{"losses": {"2": 1.5}}] * 3
    assert training.runs == 2
