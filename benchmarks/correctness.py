"""Is a record's gradient right on this device, and its own, in every number format?

    python benchmarks/correctness.py --device cuda --json correctness.json
    python benchmarks/correctness.py --quick   # does everything run?

The model is a random decoder with an adapter in every linear layer, which was moved away from its
start. For each number format, with and without checkpointing, it checks:

* error: the largest distance of a record's gradient, as a site computes it, from plain autograd on
  that record alone in float64 on the CPU, over that gradient's length.
* at once: of how many records a record's gradient has the same bits in any place and beside any
  neighbours, so that a site computes as many together (`invariant_sizes`); 1 is one at a time.
* company: whether 20 random subsets, computed as a site does, gave every record the same bits.
* again: whether a second computation gave the same bits.
* strict: whether a strict clipped sum has the same bits in another order of records.

The command ends with 1 where company, again or strict fails, or an error is too large.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from small_llama import save_small_llama
from torch import Tensor

from fedpriv.data.batch import Batch
from fedpriv.data.encode import Example
from fedpriv.files import write_json
from fedpriv.gradients.engine import gradients_of
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.private_training.batch_invariance import BatchInvariant, invariant_sizes
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.microbatch import private_microbatch
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.record_loss import record_losses
from fedpriv.private_training.unit_sum import sum_of_units
from fedpriv.private_training.worker import ModelRecipe, Worker

FORMAT = 1
CLIP = 0.1
MOST_WRONG = {"float64": 1e-9, "float32": 1e-3, "mixed": 3e-2, "bfloat16": 1e-1}


@dataclass(frozen=True)
class Found:
    """Hold the result of one number format. The attributes are the columns of the table."""

    dtype: str
    checkpointing: bool
    error: float
    at_once: int
    company: bool
    again: bool
    strict: bool

    @property
    def good(self) -> bool:
        return self.company and self.again and self.strict and self.error < MOST_WRONG[self.dtype]


def worker_of(folder: Path, device: str, dtype: str, tokens: int, checkpointing: bool) -> Worker:
    """Make a worker on the decoder. Its adapter is not at its start, where lora_B is 0."""
    compute = ComputeSection.model_validate(
        {"device": device, "dtype": dtype, "gradient_checkpointing": checkpointing}
    )
    model, lora = ModelSection(name=str(folder), max_length=tokens), LoraSection(r=8, alpha=16)
    worker = make_worker(ModelRecipe(model, lora, 0, compute))
    noise = np.random.default_rng(1).normal(0, 0.02, worker.vector.size)
    worker.vector.write((worker.initial + noise).astype(np.float32))
    return worker


def random_records(count: int, tokens: int) -> list[Example]:
    """Make records of random tokens. A quarter of them are a few tokens shorter, and padded."""
    drawn = np.random.default_rng(2)
    made = []
    for number in range(count):
        ids = drawn.integers(3, 4000, tokens - 3 * (number % 4 == 0)).tolist()
        made.append(Example(ids, ids))
    return made


def rows_of(worker: Worker) -> BatchInvariant:
    """Return the gradients as a site computes them."""

    def values(batch: Batch) -> Tensor:
        return gradients_of(worker.gradients, partial(record_losses, batch=batch), len(batch))

    return BatchInvariant(worker, values)


def by_autograd(folder: Path, records: list[Example], tokens: int) -> Tensor:
    """Compute (B, P) in float64 on the CPU, one record at a time. Only the loss is our code."""
    worker = worker_of(folder, "cpu", "float64", tokens, checkpointing=False)
    worker.gradients.detach()
    trained = [p for p in worker.model.parameters() if p.requires_grad]
    rows = []
    for record in records:
        loss = record_losses(worker.model, batch=worker.batch([record], tokens)).sum()
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, trained)]))
    return torch.stack(rows)


def checked(
    folder: Path,
    device: str,
    dtype: str,
    checkpointing: bool,
    records: list[Example],
    tokens: int,
    expected: Tensor,
) -> Found:
    """Run all checks of one number format.

    Args:
        expected: the gradients of these records, (B, P) in float64.
    """
    worker = worker_of(folder, device, dtype, tokens, checkpointing)
    rows = rows_of(worker)
    found = rows(records, tokens)
    wrong = (found.double().cpu() - expected).norm(dim=1) / expected.norm(dim=1)
    drawn = np.random.default_rng(3)
    company = True
    for _ in range(20):
        members = drawn.permutation(len(records))[: drawn.integers(1, len(records) + 1)].tolist()
        there = rows([records[i] for i in members], tokens)
        company &= torch.equal(there, found[members])
    sums = [_strict_sum(worker, order) for order in (records, records[::-1])]
    most = private_microbatch(worker)
    return Found(
        dtype,
        checkpointing,
        float(wrong.max()),
        int(invariant_sizes(worker, most, tokens)[0]),
        company,
        torch.equal(rows(records, tokens), found),
        torch.equal(*sums),
    )


def _strict_sum(worker: Worker, records: list[Example]) -> Tensor:
    def values(batch: Batch) -> Tensor:
        return gradients_of(worker.gradients, partial(record_losses, batch=batch), len(batch))

    units = [[record] for record in records]
    size = worker.vector.size
    return sum_of_units(worker, units, CLIP, "strict", size=size, values=values).value


def show(found: list[Found]) -> None:
    table = Table(*Found.__annotations__)
    for one in found:
        shown = {**asdict(one), "error": f"{one.error:.1e}"}
        table.add_row(*map(str, shown.values()), style="" if one.good else "red")
    Console(width=100).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    arguments = parser.parse_args()
    width, layers, tokens, count = (32, 2, 24, 9) if arguments.quick else (768, 12, 128, 65)
    records = random_records(count, tokens)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_small_llama(
            folder, width=width, layers=layers, heads=max(4, width // 64), tokens=tokens
        )
        expected = by_autograd(folder, records, tokens)
        found: list[Found] = []
        for dtype in ("float64", "float32", "mixed", "bfloat16"):
            for checkpointing in (False, True):
                found.append(
                    checked(
                        folder, arguments.device, dtype, checkpointing, records, tokens, expected
                    )
                )
                print(found[-1], flush=True)
    show(found)
    if arguments.json is not None:
        command = shlex.join(["python", "benchmarks/correctness.py", *sys.argv[1:]])
        rows = [asdict(one) for one in found]
        write_json(arguments.json, {"format": FORMAT, "command": command, "rows": rows})
    return 0 if all(one.good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
