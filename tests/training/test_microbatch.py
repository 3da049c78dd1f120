"""How many records are computed at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedpriv import memory
from fedpriv.data.encode import Example
from fedpriv.training.microbatch import is_out_of_memory, records_that_fit


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
    )
    names = {"SC_PHYS_PAGES": size, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(memory.os, "sysconf", names.__getitem__)
    monkeypatch.setattr(memory, "limit", lambda: None)
    assert records_that_fit(worker) == expected


def test_what_is_given_is_taken(make_worker: Callable[..., Any]) -> None:
    assert make_worker(microbatch=5).at_once == 5
    assert make_worker(microbatch=None).at_once == 16


def test_out_of_memory_is_remembered_and_said_once(
    make_worker: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from fedpriv.training.dp_lora import DpLora

    worker = make_worker(microbatch=8)
    ids = torch.randint(3, 250, (8, 12), generator=torch.Generator().manual_seed(0)).tolist()
    units = [(Example(row, [-100, *row[1:]]),) for row in ids]
    expected = DpLora().clipped_sum(worker, units, worker.initial, 1.0).value
    rows = worker.gradients.rows

    def scarce(losses: Any, batch_size: int) -> torch.Tensor:
        if batch_size > 2:
            raise torch.OutOfMemoryError
        found: torch.Tensor = rows(losses, batch_size)
        return found

    monkeypatch.setattr(worker.gradients, "rows", scarce)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = DpLora().clipped_sum(worker, units, worker.initial, 1.0).value
            assert (found - expected).abs().max() < 1e-12
    assert worker.at_once == 2
    assert len([r for r in caplog.records if "Out of memory" in r.message]) <= 2
    assert worker.failures == {}


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
