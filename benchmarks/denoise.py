"""Measure what denoising costs, as a share of a private step.

    python benchmarks/denoise.py --json denoise.json

The encoders have two sizes, with LoRA on query, key, value and both dense layers. Timed in turn, on
one thread, are one private step (per-record gradients, clipping, sum, noise), fedpriv's denoiser,
and the same equations by batched and by per-layer singular value decomposition. The table has
medians and ratios. A step of more records makes the share smaller in proportion. The floor is the
multiplications of the two products with the gradient, 4mn·min(m, n) for each matrix, at the rate of
the step's own products.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleaved import interleaved, median, ratio
from rich.console import Console
from rich.table import Table
from torch import Tensor
from unit_noise import unit_noise

from fedpriv.gradients.engine import gradients_of
from fedpriv.gradients.per_sample import PerSampleGradients
from fedpriv.gradients.product import linear
from fedpriv.models.vector import TrainableVector
from fedpriv.privacy.mechanism.clip import clip_and_sum
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.public_update.config import DenoiseSection
from fedpriv.public_update.denoise import Denoiser
from fedpriv.public_update.edge import noise_edge

MODELS = {"6 × 384": (6, 384), "12 × 768": (12, 768)}  # layers, width
QUICK = {"2 × 64": (2, 64)}
RANK, TOKENS, MICROBATCH, KAPPA = 16, 48, 32, 1.02


def encoder(layers: int, width: int) -> Any:
    """Make a random BERT with an adapter and a head."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    sizes: dict[str, Any] = {
        "vocab_size": 1000, "hidden_size": width, "num_hidden_layers": layers, "num_labels": 2,
        "num_attention_heads": width // 32, "intermediate_size": 4 * width,
        "attn_implementation": "eager",
    }  # fmt: skip
    config = BertConfig(**sizes)
    adapter = LoraConfig(
        task_type="SEQ_CLS", r=RANK, target_modules=["query", "key", "value", "dense"],
        modules_to_save=[],
    )  # fmt: skip
    model = get_peft_model(BertForSequenceClassification(config), adapter)
    return model.eval()


def step(model: Any, gradients: PerSampleGradients, records: int) -> Callable[[], Tensor]:
    """Return a private step on random tokens."""
    ids = torch.randint(1000, (MICROBATCH, TOKENS))
    labels = torch.randint(2, (MICROBATCH,))

    def losses(model: Any) -> Tensor:
        return torch.nn.functional.cross_entropy(model(ids).logits, labels, reduction="none")

    def run() -> Tensor:
        total = torch.zeros(gradients.size, dtype=torch.float64)
        for _ in range(records // MICROBATCH):
            total += clip_and_sum(gradients_of(gradients, losses, MICROBATCH), 1.0)
        return total + torch.from_numpy(unit_noise(gradients.size, SystemCsprng()))

    return run


def by_svd(matrices: list[Tensor], *, batched: bool) -> None:
    """Solve the same equations as they are printed."""
    groups: dict[tuple[int, ...], list[Tensor]] = {}
    for index, matrix in enumerate(matrices):
        key = (*matrix.shape, 0 if batched else index)
        groups.setdefault(key, []).append(matrix)
    for group in groups.values():
        x = torch.stack(group)
        m, n = x.shape[1:]
        u, y, v = torch.linalg.svd(x, full_matrices=False)
        spread = (y.square() - m - n).square() - 4 * m * n
        eta = (spread.clamp_min(0).sqrt() / y).where(y > KAPPA * noise_edge(m, n), 0.0)
        found = (u * eta.unsqueeze(1)) @ v
        found *= (x.norm(dim=(1, 2)) / found.norm(dim=(1, 2)).clamp_min(1e-30)).view(-1, 1, 1)


def measure(layers: int, width: int, records: int, repeats: int) -> dict[str, Any]:
    model = encoder(layers, width)
    shapes = TrainableVector(model).shapes
    gradients = PerSampleGradients(model)
    denoiser = Denoiser(shapes, DenoiseSection(where="server", kappa=KAPPA))
    generator = np.random.default_rng(0)
    parts = []
    for shape in shapes:  # unit noise, and a signal of rank one in every matrix
        noise = generator.standard_normal(shape)
        if len(shape) == 2:
            noise += 2.0 * generator.standard_normal((shape[0], 1))
        parts.append(noise.astype(np.float32))
    vector = public(np.concatenate([part.ravel() for part in parts]))
    matrices = [torch.from_numpy(part) for part in parts if part.ndim == 2]
    cases: dict[str, Callable[[], Any]] = {
        "step": step(model, gradients, records),
        "fedpriv": lambda: denoiser(vector, 1.0),
        "batched SVD": lambda: by_svd(matrices, batched=True),
        "SVD by layer": lambda: by_svd(matrices, batched=False),
    }
    turns = interleaved(cases, repeats)
    x, weight = torch.randn(2048, width), torch.randn(width, width)
    linear(x, weight)
    started = time.perf_counter()
    linear(x, weight)
    rate = 2 * x.shape[0] * width**2 / (time.perf_counter() - started)
    work = sum(4 * m.shape[0] * m.shape[1] * min(m.shape) for m in matrices)
    assert denoiser.found is not None  # it was timed above
    return {
        "seconds": {name: median(turns, name) for name in cases},
        "share_of_step": {name: ratio(turns, name, "step") for name in cases if name != "step"},
        "floor": work / rate,
        "matrices": len(matrices),
        "parameters": sum(part.size for part in parts),
        "on": denoiser.found.on,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=256, help="of a step, of 48 tokens each")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    models = MODELS
    if arguments.quick:
        models, arguments.records, arguments.repeats = QUICK, MICROBATCH, 1
    torch.set_num_threads(1)
    found = {
        name: measure(*shape, arguments.records, arguments.repeats)
        for name, shape in models.items()
    }
    table = Table("encoder", "matrices", "method", "ms", "share of a step", "floor ms")
    for name, row in found.items():
        for method, share in row["share_of_step"].items():
            table.add_row(
                name,
                str(row["matrices"]),
                method,
                f"{row['seconds'][method] * 1e3:.2f}",
                f"{share:.3%}",
                f"{row['floor'] * 1e3:.2f}" if method == "fedpriv" else "",
            )
    Console().print(table)
    print(f"A step: {arguments.records} records of {TOKENS} tokens.")
    if arguments.json:
        rows = [{"shape": name, "records": arguments.records, **row} for name, row in found.items()]
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
