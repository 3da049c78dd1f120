"""What a step of PE-SGD costs at a site, beside a step of DP-LoRA on the same records.

    python benchmarks/pe_step.py --json pe_step.json

On the embedded model, with records of 128 random tokens: a step over 80 of them, by DP-LoRA, and by
PE-SGD in the gradients of 200 others, which are computed in every step. The arithmetic floor is
280 gradients to 80, so 3.5 times a step.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleaved import interleaved, median, ratio
from rich.console import Console
from rich.table import Table

from fedpriv.config.job import ComputeSection, LoraSection, ModelSection
from fedpriv.data.encode import Example
from fedpriv.methods.dp_lora.site import DpLora
from fedpriv.methods.pe_sgd.config import ProjectionSection
from fedpriv.methods.pe_sgd.site import PeSgd
from fedpriv.training.pool import make_worker
from fedpriv.training.worker import ModelRecipe, Worker

TOKENS = 128


def records(count: int, seed: int) -> tuple[Example, ...]:
    drawn = np.random.default_rng(seed).integers(3, 4096, (count, TOKENS))
    return tuple(Example(row, [-100, *row[1:]]) for row in drawn.tolist())


def measure(worker: Worker, batch: int, size: int, repeats: int) -> dict[str, Any]:
    noise = np.random.default_rng(2).normal(size=worker.vector.size) / 20
    vector = (worker.initial + noise).astype(np.float32)  # lora_B is 0 at the start
    units = [(record,) for record in records(batch, seed=0)]
    made_up = records(size, seed=1)

    def pe_sgd() -> torch.Tensor:
        method = PeSgd(ProjectionSection(size=size))
        method.take(made_up)
        method.prepare(worker, vector)
        return method.clipped_sum(worker, units, vector, 1.0).value

    cases: dict[str, Any] = {
        "DP-LoRA": lambda: DpLora().clipped_sum(worker, units, vector, 1.0),
        "PE-SGD": pe_sgd,
    }
    turns = interleaved(cases, repeats)
    return {
        "floor": (batch + size) / batch,
        "seconds": {name: median(turns, name) for name in cases},
        "time_ratio": {name: ratio(turns, name, "DP-LoRA") for name in cases},
        "values": {"DP-LoRA": worker.vector.size, "PE-SGD": size},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=80)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.batch, arguments.size, arguments.repeats = 8, 20, 1
    torch.set_num_threads(1)
    recipe = ModelRecipe(
        ModelSection(max_length=TOKENS), LoraSection(r=4, alpha=8), 0, ComputeSection()
    )
    found = measure(make_worker(recipe), arguments.batch, arguments.size, arguments.repeats)
    table = Table("step", "values sent", "seconds", "of DP-LoRA")
    for name, seconds in found["seconds"].items():
        table.add_row(
            name,
            str(found["values"][name]),
            f"{seconds:.2f}",
            f"{found['time_ratio'][name]:.2f}",
        )
    Console().print(table)
    print(f"Arithmetic floor: {found['floor']:.2f} of DP-LoRA.")
    if arguments.json:
        rows = [
            {
                "shape": f"embedded, batch {arguments.batch}, N {arguments.size}",
                "method": name,
                "time_ratio": found["time_ratio"][name],
                "floor": found["floor"],
            }
            for name in found["seconds"]
        ]
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
