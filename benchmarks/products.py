"""Time the two parts of a step on a CPU that torch's own functions do more slowly.

    python benchmarks/products.py --json products.json
    python benchmarks/products.py --halves --json halves.json

They are products of activations with frozen weights, and the loss of a language model with its
gradient. Both are timed as `torch.nn.functional` does them and as fedpriv does, in turn, with the
median of their ratios. The floor of a product is its multiplications at the best rate that was
seen.

``--halves`` says where the time of a product in bfloat16 goes (`compute.dtype = "mixed"`), by width
and number of rows: rounding the inputs, the product itself, and widening the outputs. *Packed* is
the same product with a weight that was laid out for it beforehand. So the difference is what laying
it out costs each time. *Inside* keeps float32 on both sides and lets oneDNN round within the
product. Where the whole takes less time than float32, `mixed` pays.
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
from fedpriv.private_training.record_loss import next_tokens, token_losses

# Rows, inputs, outputs: of the embedded model and of all-MiniLM, with 16 records of 128 tokens.
PRODUCTS = [(2048, 256, 256), (2048, 256, 640), (2048, 640, 256), (2048, 384, 1536)]
PRODUCTS += [(2048, 256, 4096), (2048, 4096, 256)]
LOSSES = [(16, 128, 4096), (4, 128, 50257)]


def product_cases(shape: tuple[int, int, int]) -> dict[str, Callable[[], Any]]:
    rows, inputs, outputs = shape
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    return {"torch": lambda: F.linear(x, weight), "fedpriv": lambda: linear(x, weight)}


def loss_cases(shape: tuple[int, int, int]) -> dict[str, Callable[[], Any]]:
    """Compare two ways to the loss and its gradient by the logits, just written by a product."""
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


def halves_cases(rows: int, width: int) -> dict[str, Callable[[], Any]]:
    """Compare a product in bfloat16, its parts, and its rivals. All have float32 on both sides."""
    x, weight = torch.randn(rows, width), torch.randn(width, width)
    x16, weight16 = x.bfloat16(), weight.bfloat16()
    y16 = F.linear(x16, weight16)
    cases: dict[str, Callable[[], Any]] = {
        "float32": lambda: linear(x, weight),
        "mixed": lambda: linear(x, weight16),
        "mixed, back": lambda: linear(x, weight16.t()),
        "round": lambda: x.to(torch.bfloat16),
        "product": lambda: F.linear(x16, weight16),
        "widen": lambda: y16.to(torch.float32),
    }
    onednn: Any = torch.ops.mkldnn
    if onednn._is_mkldnn_bf16_supported():
        packed = onednn._reorder_linear_weight(weight16, rows)
        cases["packed"] = lambda: onednn._linear_pointwise(x16, packed, None, "none", [], "")

        def inside() -> None:
            precision: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
            before, precision.fp32_precision = precision.fp32_precision, "bf16"
            onednn._linear_pointwise(x, weight, None, "none", [], "")
            precision.fp32_precision = before

        cases["inside"] = inside
    return cases


def halves(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Measure the median microseconds of each case, by width and rows, and print them."""
    found: list[dict[str, Any]] = []
    for width in (64,) if quick else (256, 384, 576, 1024, 2048):
        for rows in (16,) if quick else (64, 256, 1024):
            cases = halves_cases(rows, width)
            turns = interleaved(cases, repeats)
            found.append(
                {"width": width, "rows": rows} | {name: 1e6 * median(turns, name) for name in cases}
            )
    table = Table(*found[0], title="µs; rows × width, times width × width")
    for row in found:
        table.add_row(*(f"{value:.0f}" for value in row.values()))
    Console().print(table)
    return found


def measure(cases: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return each case's median seconds, and the median of ours over torch's in the same turn."""
    turns = interleaved(cases, repeats)
    seconds = {name: median(turns, name) for name in cases}
    return {**seconds, "ratio": ratio(turns, "fedpriv", "torch")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--halves", action="store_true", help="the parts of one in bfloat16")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    repeats = 3 if arguments.quick else arguments.repeats
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    if arguments.halves:
        rows = halves(repeats, arguments.quick)
        if arguments.json:
            arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
        return
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
