"""Measure how a private step grows with the model and the length of a record, beside a plain one.

    python benchmarks/growth.py --json growth.json
    python benchmarks/growth.py --device cuda --memory 70 --json growth-gpu.json

The models are random decoders with LoRA on all linear layers, from 4 to 350 million parameters, and
on a GPU to 3 billion in bfloat16. Records have 128 to 2,048 tokens. A step is that of `step.py`,
with and without activation checkpointing. All ways have the same base weights in memory and run in
turn in one process. A ratio is the median over turns. Memory is what tensors take beyond the model,
by torch's own allocator.

Floors, by arithmetic: a private step has the multiplications of a plain one, 4 for each parameter
and token, and so a ratio of 1. Beyond a plain step it has to hold the gradients of every record for
the largest adapter matrix, and the float64 sum. With checkpointing any step holds the input of each
layer, and the logits. For sizes that exceed `--memory` only these figures are computed.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from interleaved import interleaved, median, ratio
from rich.console import Console
from rich.table import Table
from step import Fedpriv, Plain, Shape, Way, build, peak_bytes, random_batch, trained

from fedpriv.environment import set_environment
from fedpriv.models.attention import RECORDWISE
from fedpriv.models.checkpointing import checkpoint_layers
from fedpriv_simulation.shared_base import twin

set_environment()
WAYS = {
    "plain": (Plain, False),
    "fedpriv": (Fedpriv, False),
    "plain, checkpointing": (Plain, True),
    "fedpriv, checkpointing": (Fedpriv, True),
}
KEPT = 1.25  # of the weights and of what a step holds, for gaps of the allocator


@dataclass(frozen=True)
class Size:
    """Describe a decoder by its layers, its width, and the lengths of records to measure."""

    layers: int
    width: int
    tokens: tuple[int, ...]


SIZES = [
    Size(4, 192, (128, 512, 2048)),
    Size(6, 448, (128, 512, 2048)),
    Size(12, 704, (128, 512)),
    Size(18, 1088, (128,)),
    Size(24, 1792, (128,)),
]
LARGE = [Size(24, 1024, (512, 2048)), Size(24, 2048, (512,)), Size(20, 3072, (512,))]  # for a GPU
QUICK = [Size(2, 64, (16, 64))]


def shape_of(size: Size, tokens: int, device: str = "cpu") -> Shape:
    """Return what a site computes at once: 4 short records, or 16 on a GPU, there in bfloat16."""
    most, dtype = (4, torch.float32) if device == "cpu" else (16, torch.bfloat16)
    records = max(1, min(most, most * 128 // tokens))
    sizes: dict[str, Any] = {"layers": size.layers, "width": size.width, "dtype": dtype}
    return Shape("decoder", "all", records, tokens, 8, **sizes)


def parameters(size: Size) -> int:
    """Count the parameters of the base. Its feed-forward layers are four times as wide."""
    return size.layers * 16 * size.width**2 + 2 * Shape.vocabulary * size.width


def arithmetic(size: Size, tokens: int, device: str = "cpu") -> dict[str, float]:
    """Return the figures that no implementation can go below."""
    shape = shape_of(size, tokens, device)
    each = shape.dtype.itemsize
    rows, wide = shape.records * tokens, 4 * size.width
    kept = size.layers * size.width + shape.vocabulary
    adapter = size.layers * shape.rank * (4 * 2 * size.width + 3 * (size.width + wide))
    return {
        "parameters": parameters(size),
        "trained": adapter,
        "weights_mb": each * parameters(size) / 1e6,
        "floor_multiplications": 4.0 * parameters(size) * rows,
        "floor_beyond_plain_mb": (4 * shape.records * shape.rank * wide + 8 * adapter) / 1e6,
        "floor_checkpointing_mb": each * rows * kept / 1e6,
    }


def measure(size: Size, tokens: int, seconds: float, device: str) -> list[dict[str, Any]]:
    """Measure a row for each way, with about `seconds` of steps, and at least two turns."""
    shape = shape_of(size, tokens, device)
    batch, first = random_batch(shape).to(device), build(shape, RECORDWISE).to(device)
    first.config.use_cache = False  # as for every model that trains
    ways: dict[str, Way] = {}
    for name, (kind, checkpointed) in WAYS.items():
        base: Any = None
        _, model = twin(base, first)
        if checkpointed:
            checkpoint_layers(model)
        ways[name] = kind(model.train(kind is Plain), batch)
    started = time.perf_counter()
    steps = {name: finished(way.step, device) for name, way in ways.items()}
    for step in steps.values():
        step()
    repeats = max(2, min(9, int(seconds / (time.perf_counter() - started)) - 1))
    turns = interleaved(steps, repeats)
    peaks = {name: peak_bytes(way.step, device) for name, way in ways.items()}
    facts = {
        **arithmetic(size, tokens, device),
        "parameters": sum(p.numel() for p in first.parameters() if not p.requires_grad),
        "trained": sum(p.numel() for p in trained(first)),
    }
    return [
        {
            **facts,
            "records": shape.records,
            "tokens": tokens,
            "way": name,
            "turns": repeats,
            "seconds": median(turns, name),
            "time_ratio": ratio(turns, name, "plain"),
            "peak_mb": peaks[name] / 1e6,
            "memory_ratio": peaks[name] / peaks["plain"],
        }
        for name in ways
    ]


def finished(step: Callable[[], None], device: str) -> Callable[[], None]:
    """Make a step that ends when the device has finished it."""
    if device == "cpu":
        return step

    def run() -> None:
        step()
        torch.cuda.synchronize()

    return run


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("parameters", "records × tokens", "way", "time", "memory", "MB", "floor MB")
    last = None
    for row in rows:
        here = (f"{row['parameters'] / 1e6:,.0f} M", f"{row['records']} × {row['tokens']}")
        floor = row["floor_checkpointing_mb"] if "checkpointing" in row["way"] else None
        if row["way"] == "fedpriv":
            floor = row["floor_beyond_plain_mb"]
        figures = ("–", "–", "–")
        if "seconds" in row:
            figures = (
                f"{row['time_ratio']:.2f}",
                f"{row['memory_ratio']:.2f}",
                f"{row['peak_mb']:,.0f}",
            )
        shown = here if here != last else ("", "")
        table.add_row(*shown, row["way"], *figures, "" if floor is None else f"{floor:,.0f}")
        last = here
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of steps, a row of the table")
    parser.add_argument("--memory", type=float, default=6.0, help="GB that may be taken")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []

    def keep(more: list[dict[str, Any]]) -> None:
        rows.extend(more)
        if arguments.json:
            arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")

    device = arguments.device
    for size in QUICK if arguments.quick else SIZES if device == "cpu" else LARGE:
        for tokens in size.tokens:
            facts = arithmetic(size, tokens, device)
            if KEPT * facts["weights_mb"] / 1e3 > arguments.memory / 2:  # a half is for the steps
                shape = shape_of(size, tokens, device)
                keep([{**facts, "records": shape.records, "tokens": tokens, "way": "–"}])
                continue
            seconds = 0.0 if arguments.quick else arguments.seconds
            keep(measure(size, tokens, seconds, device))
            print(rows[-3], flush=True)
    show(rows)


if __name__ == "__main__":
    main()
