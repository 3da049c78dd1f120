"""How many records are computed at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv import memory
from fedpriv.data.encode import Example
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.methods.pe_sgd.config import ProjectionSection
from fedpriv.methods.pe_sgd.site_half import PeSgd
from fedpriv.private_training import microbatch
from fedpriv.private_training.microbatch import (
    ON_A_CPU,
    TRIED,
    is_out_of_memory,
    private_microbatch,
    public_microbatch,
)

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("size", "expected"), [(2**40, 16), (16 * 1000 * 4 * 9, 8), (16 * 1000 * 4 // 2, 1)]
)
def test_rows_take_a_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, size: int, expected: int
) -> None:
    worker: Any = SimpleNamespace(
        device="cpu",
        vector=SimpleNamespace(size=1000),
        gradients=SimpleNamespace(dtype=torch.float32),
        microbatches={},
        recipe=SimpleNamespace(compute=SimpleNamespace(microbatch=None)),
    )
    names = {"SC_PHYS_PAGES": size, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(memory.os, "sysconf", names.__getitem__)
    monkeypatch.setattr(memory, "limit", lambda: None)
    assert public_microbatch(worker) == expected


@pytest.mark.parametrize("free", [2**20, 2**33])
def test_on_a_gpu_it_is_a_share_of_all_memory_whatever_is_free(
    monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """Earlier private steps leave more or less of it."""
    taken = {1: 5_000, 2: 5_500}
    monkeypatch.setattr(microbatch, "rehearse", lambda worker, count: taken[count])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2**33))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=20_000)
    )
    worker: Any = SimpleNamespace(
        device="cuda:0",
        microbatches={},
        recipe=SimpleNamespace(compute=SimpleNamespace(microbatch=None)),
    )
    assert public_microbatch(worker) == 8  # of 1 + (0.6 · 20,000 − 5,000) / 500 = 15


def test_what_is_given_is_taken(make_worker: Make) -> None:
    worker = make_worker(microbatch=5)
    assert (public_microbatch(worker), private_microbatch(worker)) == (5, 5)
    worker = make_worker(microbatch=None)
    assert (public_microbatch(worker), private_microbatch(worker)) == (ON_A_CPU, TRIED["cpu"])


def spare(worker: Any, monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """Leave memory for so many at once."""
    stream = worker.gradients.stream

    def limited(plain: Callable[..., Any], losses: Any, batch_size: int, *more: Any) -> Any:
        if batch_size > records:
            raise torch.OutOfMemoryError
        return plain(losses, batch_size, *more)

    monkeypatch.setattr(worker.gradients, "stream", partial(limited, stream))


def units_of(count: int) -> list[tuple[Example, ...]]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 250, (count, 12), generator=generator).tolist()
    return [(Example(row, [-100, *row[1:]]),) for row in ids]


def test_memory_that_runs_out_in_a_step_changes_no_other_step(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which record is long enough for that is not for the others to show."""
    units, worker = units_of(3), make_worker(microbatch=4)
    section = ProjectionSection(size=4)
    method = PeSgd(section, tuple(one for (one,) in units_of(4)))
    method.prepare(worker, worker.initial)
    parameters = worker.initial + np.float32(0.01)
    before = DpLora().clipped_sum(worker, units, parameters, 1.0).value
    assert before.any()
    with monkeypatch.context() as context:
        spare(worker, context, 0)
        for way in (DpLora(), method):
            assert not way.clipped_sum(worker, units, parameters, 1.0).value.any()
    assert worker.failures == {"OutOfMemoryError": 6}
    assert (private_microbatch(worker), public_microbatch(worker)) == (4, 4)
    assert torch.equal(DpLora().clipped_sum(worker, units, parameters, 1.0).value, before)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_what_running_out_of_memory_looks_like(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected
