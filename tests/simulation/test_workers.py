"""How many sites compute at once; what they make is the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.config.load import HOSPITALS, load_job
from fedpriv.errors import ConfigError
from fedpriv.private_training.config import ComputeSection
from fedpriv_simulation import workers as module
from fedpriv_simulation.simulate import simulate
from fedpriv_simulation.workers import gpus_of_a_host, own_threads, workers_of

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("overrides", "cores", "parameters", "expected"),
    [
        ([], 2, 4e6, 2),
        ([], 64, 4e6, 4),  # no more than sites
        ([], 64, 2e8, 2),  # no more copies than fit
        ([], 64, 7e9, 1),
        ([], 64, None, 1),  # of unknown size
        ([], 1, 4e6, 1),
        (["compute.workers=3"], 1, 7e9, 3),
        (["compute.workers=9"], 1, 7e9, 4),
        (["compute.device=meta"], 64, 4e6, 1),
    ],
)
def test_one_a_core_while_the_copies_are_small(
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    cores: int,
    parameters: float | None,
    expected: int,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    monkeypatch.setattr(module, "parameters_of", lambda name: parameters)
    assert workers_of(load_job(HOSPITALS, overrides)) == expected


def test_each_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    for workers in (1, 2, 9):
        own_threads(workers)()
    assert seen == [5, 2, 1]


@pytest.mark.slow
def test_sites_that_compute_at_once_make_the_same_model(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = federation(rounds=2, sites=3)
    from fedpriv_client import site as site_module

    real, threads = site_module.private_step, set()

    def watched(*arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return real(*arguments)

    monkeypatch.setattr(site_module, "private_step", watched)
    made = []
    for workers in (1, 3):
        # With other threads it rounds otherwise, which in float64 stays far below 1e-6.
        config = load_job(file, [f"compute.workers={workers}", "compute.dtype=float64"])
        out = tmp_path / str(workers)
        outcome = simulate(config, out, source=file, insecure_seed=3)
        made.append(outcome.rounds[-1]["eval_loss"])
    assert made[0] == pytest.approx(made[1], rel=1e-6)
    assert len(threads) > 2  # one, and then several


def test_batches_are_tried_with_the_threads_of_the_steps(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = federation(rounds=1, sites=2)
    from fedpriv_client import site as site_module

    seen: dict[str, set[int]] = {}

    def watch(name: str) -> None:
        real, threads = getattr(site_module, name), seen.setdefault(name, set())

        def watched(*arguments: Any, **options: Any) -> Any:
            threads.add(torch.get_num_threads())
            return real(*arguments, **options)

        monkeypatch.setattr(site_module, name, watched)

    watch("try_lengths")
    watch("private_step")
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        config = load_job(file, ["compute.workers=2"])
        simulate(config, tmp_path / "run", source=file)
        assert torch.get_num_threads() == 4  # the server's own
    finally:
        torch.set_num_threads(before)
    assert seen == {"try_lengths": {2}, "private_step": {2}}


@pytest.mark.parametrize(
    ("device", "there", "count", "given_share", "expected"),
    [
        ("auto", 0, 2, None, 0.0),
        ("cpu", 4, 2, None, 0.0),
        ("auto", 4, 2, None, 2.0),
        ("auto", 4, 3, None, 1.0),
        ("auto", 1, 4, None, 0.25),
        ("auto", 2, 3, None, 0.5),  # a share is of one GPU
        ("cuda", 2, 4, 0.5, 0.5),
    ],
)
def test_gpus_are_shared(
    device: str, there: int, count: int, given_share: float | None, expected: float
) -> None:
    compute = ComputeSection(device=device, gpus_per_site=given_share)
    assert gpus_of_a_host(compute, there, count) == expected


def test_more_gpus_than_there_are_are_refused() -> None:
    for share, count in ((1.0, 4), (0.4, 5)):
        compute = ComputeSection(gpus_per_site=share)
        with pytest.raises(ConfigError, match=r"gpus_per_site.*Lower it"):
            gpus_of_a_host(compute, 2, count)
