"""What a private step takes besides its forward and backward pass.

    python benchmarks/parts.py --json parts.json

A decoder of 6 layers, 384 wide, with LoRA of rank 8 on query and value; a site of 8,000 made-up
records of 128 tokens, of which 16 are in a step. Each part is the function that a site or a server
calls in a round, timed by itself in turn with the others; the ledger and the checkpoint are on the
disk of ``--folder``, with their fsyncs. A share is the median over turns of a part over the step of
the same turn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleaved import interleaved, median, ratio
from rich.console import Console
from rich.table import Table
from small_llama import save_small_llama

from fedpriv.config.job import ComputeSection, LoraSection, ModelSection, OptimizerSection
from fedpriv.data.encode import Example
from fedpriv.data.store import StoredUnits, TokenFile
from fedpriv.environment import set_environment
from fedpriv.methods.dp_lora.site import DpLora
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation, Terms
from fedpriv.privacy.mechanism.clip import ClippedSum, clip_and_sum
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.privacy.mechanism.execution import PlanExecution
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.privacy.mechanism.sampling import poisson_sample
from fedpriv.training.optimizer import VectorOptimizer
from fedpriv.training.pool import make_worker
from fedpriv.training.worker import ModelRecipe, Worker
from fedpriv_server.checkpoint import Checkpoint

RECORDS, TOKENS, BATCH = 8000, 128, 16
RATE = BATCH / RECORDS
SLOTS = 1000


def small_worker(folder: Path) -> Worker:
    save_small_llama(folder, width=384, layers=6, heads=6, tokens=TOKENS)
    model = ModelSection(name=str(folder), max_length=TOKENS)
    lora = LoraSection(r=8, alpha=16, target_modules=("q_proj", "v_proj"))
    return make_worker(ModelRecipe(model, lora, 0, ComputeSection(device="cpu")))


def make_units(folder: Path) -> StoredUnits:
    store = TokenFile(folder).store()
    for row in np.random.default_rng(0).integers(3, 4096, (RECORDS, TOKENS)).tolist():
        store.append(Example(row, [-100, *row[1:]]))
    store.seal()
    return StoredUnits(store, [[number] for number in range(RECORDS)])


def make_parts(worker: Worker, units: StoredUnits, folder: Path) -> dict[str, Callable[[], Any]]:
    """The step, and what comes before and after it."""
    csprng, size = SystemCsprng(), worker.vector.size
    terms = Terms("0" * 32, RECORDS, "record", 1, 1e-5, 1e6, simulated=True)
    ledger = Ledger.create(folder / "ledger.db", terms)
    plan = Plan("job", "dp-lora", RATE, 1.0, 1.0, SLOTS, "sha256:" + "0" * 64)
    ledger.commit(plan)
    members = [units[index] for index in range(BATCH)]
    examples = [example for unit in members for example in unit]
    rows = torch.randn(BATCH, size) / size**0.5
    total = ClippedSum(torch.zeros(size, dtype=torch.float64), 1.0)
    reply = bytes(4 * size)
    slots, noised = count(), count()
    optimizer = VectorOptimizer(OptimizerSection(), public(worker.initial))
    slope = public(np.ones(size, dtype=np.float32))
    optimizer.step(slope)

    def pay_and_keep() -> None:
        slot = next(slots)
        paid = ledger.reserve("job", slot, "0" * 64)
        assert isinstance(paid, Reservation)
        ledger.release(paid, reply)

    def draw() -> Any:
        chosen = poisson_sample(RECORDS, RATE, csprng)
        return [units[index] for index in chosen]

    return {
        "step": lambda: DpLora().clipped_sum(worker, members, worker.initial, 1.0),
        "sampling, reading": draw,
        "collation": lambda: worker.batch(examples, TOKENS),
        "clipping": lambda: clip_and_sum(rows, 1.0),
        "noise": lambda: PlanExecution(plan, size).release(
            total, Reservation._of(terms, plan, next(noised), "0" * 64), csprng
        ),
        "ledger": pay_and_keep,
        "accounting": lambda: (ledger.epsilon_spent, ledger.epsilon_committed),
        "optimiser": lambda: optimizer.step(slope),
        "checkpoint": lambda: Checkpoint("job", 1, optimizer.state(), {}).write(
            folder / "latest.safetensors"
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    set_environment()
    torch.set_num_threads(1)
    repeats = 2 if arguments.quick else arguments.repeats
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        parts = make_parts(small_worker(folder / "model"), make_units(folder), folder)
        turns = interleaved(parts, repeats)
    table = Table("part", "ms", "share of the step")
    rows = []
    for part in parts:
        share = ratio(turns, part, "step")
        rows.append({"part": part, "seconds": median(turns, part), "share_of_step": share})
        table.add_row(part, f"{1e3 * median(turns, part):.2f}", f"{share:.2%}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
