"""What the tests of methods share that write gradients in those of a set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedpriv.data.batch import padded_length
from fedpriv.data.encode import Example
from fedpriv.methods.pe_sgd.config import ProjectionSection
from fedpriv.methods.pe_sgd.site_half import PeSgd
from fedpriv.private_training.record_loss import record_losses
from tests.gradients.gradients_checks import untouched

CLIP, RIDGE, N = 0.4, 0.05, 5


def example(seed: int, length: int) -> Example:
    ids = np.random.default_rng(seed).integers(3, 250, size=length).tolist()
    return Example(ids, [-100, *ids[1:]])


def units(sizes: list[int], first: int = 0) -> list[tuple[Example, ...]]:
    """Units of the given numbers of records, of lengths from 3 to 60."""
    return [
        tuple(example(first + 100 * u + i, 3 + (17 * u + 29 * i) % 58) for i in range(size))
        for u, size in enumerate(sizes)
    ]


RECORDS = tuple(example(10_000 + i, 9 + 11 * i) for i in range(N))


def prepared(
    worker: Any, parameters: np.ndarray, records: Any = RECORDS, kind: Any = PeSgd, **settings: Any
) -> Any:
    method = kind(ProjectionSection(**{"size": len(records), "ridge": RIDGE, **settings}), records)
    method.prepare(worker, parameters)
    return method


def moved(worker: Any) -> np.ndarray:
    noise = np.random.default_rng(5).normal(size=worker.vector.size) / 10
    found: np.ndarray = worker.vector.read() + noise.astype(np.float32)
    return found


def gradients(worker: Any, records: list[Example], parameters: np.ndarray) -> np.ndarray:
    """One record at a time with plain autograd, (B, P)."""
    with untouched(worker):
        return _gradients(worker, records, parameters)


def _gradients(worker: Any, records: list[Example], parameters: np.ndarray) -> np.ndarray:
    worker.vector.write(parameters)
    trained = [p for p in worker.model.parameters() if p.requires_grad]
    rows = []
    for record in records:
        length = padded_length(len(record.input_ids), 64)
        loss = record_losses(worker.model, worker.batch([record], length)).sum()
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trained)]).numpy())
    return np.array(rows)


def adds_up(
    method: Any, worker: Any, members: list[tuple[Example, ...]], parameters: np.ndarray
) -> None:
    """Every unit adds what it adds alone, and so at most the bound."""
    method.prepare(worker, parameters)
    whole = method.clipped_sum(worker, members, parameters, CLIP).value
    alone = [method.clipped_sum(worker, [one], parameters, CLIP).value for one in members]
    assert whole.norm() > 0.1 * CLIP
    assert (torch.stack(alone).sum(0) - whole).norm() < 1e-9 * CLIP
    for left_out in range(len(members)):
        rest = members[:left_out] + members[left_out + 1 :]
        without = method.clipped_sum(worker, rest, parameters, CLIP).value
        assert (whole - without).norm() <= CLIP
