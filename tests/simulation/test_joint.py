"""Simulated sites share batches, and every site computes the bits that it computes by itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpriv.config.load import load_job
from fedpriv.data.batch import Batch
from fedpriv.data.encode import Example
from fedpriv.methods.proposal import job_recipe
from fedpriv.private_training.batch_invariance import BatchInvariant
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv_simulation import simulate as simulation
from fedpriv_simulation.joint import JointPool, sites_at_once
from fedpriv_simulation.simulate import simulate

Make = Callable[..., Any]
SITES, LENGTH = 5, 16


def records(count: int, seed: int) -> list[Example]:
    drawn = np.random.default_rng(seed).integers(3, 250, (count, LENGTH)).tolist()
    return [Example(ids, [-100, *ids[1:]]) for ids in drawn]


@pytest.fixture
def recipe(federation: Make) -> ModelRecipe:
    return job_recipe(load_job(federation(), []))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each computed batch had."""
    found: list[int] = []
    plain = Worker.record_gradients

    def counted(worker: Worker, batch: Batch) -> Tensor:
        found.append(len(batch))
        return plain(worker, batch)

    monkeypatch.setattr(Worker, "record_gradients", counted)
    return found


def gradients(pool: WorkerPool, recipe: ModelRecipe, found: list[Example], scale: float) -> Tensor:
    """Of one site's records, at values that are `scale` times a public direction."""
    with pool.borrow(recipe) as worker:
        direction = np.random.default_rng(1).normal(size=worker.vector.size)
        worker.vector.write((scale * direction).astype(np.float32))
        return BatchInvariant(worker, worker.record_gradients)(found, LENGTH)


def of_all(pool: WorkerPool, recipe: ModelRecipe, scales: list[float]) -> list[Tensor]:
    """Of sites that ask at the same time."""
    together = Barrier(SITES)

    def ask(site: int) -> Tensor:
        torch.set_num_threads(1)
        together.wait()
        return gradients(pool, recipe, records(site + 1, seed=site), scales[site])

    with ThreadPoolExecutor(SITES) as threads:
        return list(threads.map(ask, range(SITES)))


@pytest.mark.parametrize("scales", [[0.02] * SITES, [0.02, 0.03, 0.02, 0.03, 0.02]])
def test_a_site_has_the_bits_that_it_computes_alone(
    recipe: ModelRecipe, scales: list[float]
) -> None:
    """Also where the others ask at other values, as a site does that is a round behind."""
    alone = WorkerPool(1)
    joint = JointPool(WorkerPool(1, many_sites=True), SITES)
    for site, found in enumerate(of_all(joint, recipe, scales)):
        expected = gradients(alone, recipe, records(site + 1, seed=site), scales[site])
        assert torch.equal(found, expected)
        assert found.any(1).all()


def test_sites_that_wait_are_computed_in_one_batch(recipe: ModelRecipe, sizes: list[int]) -> None:
    pool = JointPool(WorkerPool(1, many_sites=True), SITES)
    of_all(pool, recipe, [0.02] * SITES)  # tries which sizes round in the same way
    sizes.clear()
    with ThreadPoolExecutor(1) as thread:
        with pool._changed:
            pool._idle = 0  # until all wait
            asked = thread.submit(of_all, pool, recipe, [0.02] * SITES)
            while len(pool._waiting) < SITES:
                pool._changed.wait(0.01)
            pool._idle = 1
            pool._changed.notify_all()
        asked.result()
    # Of 1 + 2 + 3 + 4 + 5 records; who comes first decides who is computed with whom.
    assert len(sizes) < SITES and max(sizes) == 8


def test_a_site_whose_records_fail_disturbs_no_other(
    recipe: ModelRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = JointPool(WorkerPool(1, many_sites=True), SITES)
    expected = of_all(pool, recipe, [0.02] * SITES)
    bad = records(1, seed=0)[0].input_ids
    plain = Worker.record_gradients

    def fails(worker: Worker, batch: Batch) -> Tensor:
        if any(row == bad for row in batch.input_ids.tolist()):
            raise RuntimeError("no gradient")
        return plain(worker, batch)

    monkeypatch.setattr(Worker, "record_gradients", fails)
    together = Barrier(SITES)

    def ask(site: int) -> Tensor | None:
        torch.set_num_threads(1)
        together.wait()
        try:
            return gradients(pool, recipe, records(site + 1, seed=site), 0.02)
        except RuntimeError:
            return None

    with ThreadPoolExecutor(SITES) as threads:
        found = list(threads.map(ask, range(SITES)))
    assert found[0] is None
    for own, others in zip(found[1:], expected[1:], strict=True):
        assert own is not None and torch.equal(own, others)


@pytest.mark.slow
def test_a_run_has_the_same_bits_as_without_joint_batches(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = federation(sites=3)

    def adapter(name: str) -> bytes:
        config = load_job(file, [])
        outcome = simulate(config, tmp_path / name, source=file, insecure_seed=1)
        return (outcome.run.path / "adapter" / "adapter_model.safetensors").read_bytes()

    joint = adapter("joint")
    monkeypatch.setattr(simulation, "sites_at_once", lambda config, trained, workers: workers)
    assert adapter("each") == joint


@pytest.mark.parametrize(
    "setting",
    [
        "job.data_is_public=false",
        "job.method=pe-sgd",
        "job.sync=2",
        "privacy.numerics=strict",
        "compute.devices=2",
    ],
)
def test_only_the_same_gradients_of_public_records_are_shared(
    federation: Make, setting: str
) -> None:
    file = federation(sites=3)
    overrides = [setting, *(["synthetic.data=site-0.jsonl"] if "pe-sgd" in setting else [])]
    assert sites_at_once(load_job(file, overrides), 1000, 1) == 1
    assert sites_at_once(load_job(file, []), 1000, 1) == 3
    assert sites_at_once(load_job(file, []), 10**9, 1) == 1  # there is no room
