"""The two parts of a step on a CPU that torch's own functions do more slowly.

    python benchmarks/products.py --json products.json

Products of activations with frozen weights, and the loss of a language model with its gradient:
as `torch.nn.functional` does them and as fedpriv does, in turn, with the median of their ratios.
The floor of a product is its multiplications at the best rate that was seen.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from interleaved import interleaved, median, ratio
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedpriv.gradients.product import linear
from fedpriv.training.record_loss import next_tokens, token_losses

# Rows, inputs, outputs: of the embedded model and of all-MiniLM, 16 records of 128 tokens.
PRODUCTS = [(2048, 256, 256), (2048, 256, 640), (2048, 640, 256), (2048, 384, 1536)]
PRODUCTS += [(2048, 256, 4096), (2048, 4096, 256)]
LOSSES = [(16, 128, 4096), (4, 128, 50257)]


def product_cases(shape: tuple[int, int, int]) -> dict[str, Callable[[], Any]]:
    rows, inputs, outputs = shape
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    return {"torch": lambda: F.linear(x, weight), "fedpriv": lambda: linear(x, weight)}


def loss_cases(shape: tuple[int, int, int]) -> dict[str, Callable[[], Any]]:
    """The loss and its gradient by the logits, which a product has just written."""
    records, length, vocabulary = shape
    hidden, head = torch.randn(records * length, 64), torch.randn(vocabulary, 64)
    labels = torch.randint(vocabulary, (records, length))
    targets = next_tokens(labels).flatten()

    def logits() -> Tensor:
        return linear(hidden, head).requires_grad_()

    def theirs() -> None:
        F.cross_entropy(logits(), targets, reduction="sum", ignore_index=-100).backward()

    def ours() -> None:
        token_losses(logits().view(shape), labels)[0].sum().backward()

    return {"torch": theirs, "fedpriv": ours}


def measure(cases: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each case, and the median of ours over torch's in the same turn."""
    turns = interleaved(cases, repeats)
    seconds = {name: median(turns, name) for name in cases}
    return {**seconds, "ratio": ratio(turns, "fedpriv", "torch")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    repeats = 3 if arguments.quick else arguments.repeats
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for kind, shapes, make in [
        ("product", PRODUCTS, product_cases), ("loss", LOSSES, loss_cases),
    ]:  # fmt: skip
        for shape in shapes:
            rows.append({"kind": kind, "shape": shape, **measure(make(shape), repeats)})
    for row in rows:
        if row["kind"] == "product":
            a, b, c = row["shape"]
            row["gflops"] = 2e-9 * a * b * c / row["fedpriv"]
    peak = max(row.get("gflops", 0.0) for row in rows)
    table = Table("what", "shape", "torch ms", "fedpriv ms", "ratio", "floor ms")
    for row in rows:
        floor = f"{row['fedpriv'] * 1e3 * row['gflops'] / peak:.2f}" if "gflops" in row else ""
        table.add_row(
            row["kind"],
            " × ".join(map(str, row["shape"])),
            f"{row['torch'] * 1e3:.2f}",
            f"{row['fedpriv'] * 1e3:.2f}",
            f"{row['ratio']:.2f}",
            floor,
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
