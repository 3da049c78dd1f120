"""Measure what a frozen base in 8 or 4 bits saves, and what it costs in time and loss.

    python benchmarks/quantised.py --json quantised.json

There are two random decoders, stored in bfloat16 as large models are. For each way to keep the
base, the model is loaded in a process of its own. It says how many bytes the frozen part has, and
how much more memory the process took than at first: while the model was read, and in a private
step. Then the steps of all ways are timed in turn in one process. Last, four hospitals train the
embedded model on the notes of the package, cut to 64 tokens, with few private rounds. Sampling and
noise are seeded, so they are the same for every way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from interleaved import interleaved, ratio
from rich.console import Console
from rich.table import Table
from small_llama import save_small_llama

from fedpriv.config.load import HOSPITALS, load_job
from fedpriv.gradients.engine import gradients_of
from fedpriv.model_size import parameters_of
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.record_loss import record_losses
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv_simulation.simulate import simulate

RECORDS, TOKENS = 4, 64
SIZES = [
    {"width": 384, "layers": 6, "heads": 6},
    {"width": 768, "layers": 6, "heads": 12},
]
QUICK = [{"width": 64, "layers": 2, "heads": 2}, {"width": 128, "layers": 2, "heads": 2}]
# By name: compute.dtype and model.quantize.
WAYS: dict[str, tuple[Any, Any]] = {
    "float32": ("float32", None),
    "mixed": ("mixed", None),
    "bfloat16": ("bfloat16", None),
    "8bit": ("float32", "8bit"),
    "4bit": ("float32", "4bit"),
    "8bit, mixed": ("mixed", "8bit"),
    "4bit, mixed": ("mixed", "4bit"),
}
TRAINED = ("float32", "8bit", "4bit")


def worker_of(folder: str, way: str) -> Worker:
    """Make a worker with rank 8 in every linear layer, moved away from its start."""
    dtype, quantize = WAYS[way]
    worker = make_worker(
        ModelRecipe(
            ModelSection(name=folder, max_length=TOKENS, quantize=quantize),
            LoraSection(r=8, alpha=16),
            seed=0,
            compute=ComputeSection(device="cpu", dtype=dtype, microbatch=RECORDS),
        )
    )
    noise = torch.randn(worker.vector.size, generator=torch.Generator().manual_seed(0)) * 0.02
    worker.vector.write(worker.initial + noise.numpy())
    return worker


def gradients(worker: Worker) -> torch.Tensor:
    """Return the gradients of four random records of the full length, each by itself."""
    batch = worker.random_batch(torch.ones(RECORDS, TOKENS, dtype=torch.int64), seed=0)
    return gradients_of(worker.gradients, partial(record_losses, batch=batch), RECORDS)


def loss(worker: Worker) -> float:
    """Return the mean loss over the same records."""
    batch = worker.random_batch(torch.ones(RECORDS, TOKENS, dtype=torch.int64), seed=0)
    with torch.no_grad():
        return float(record_losses(worker.model, batch).mean())


def memory(folder: str, way: str) -> dict[str, float]:
    """Return the MB of one process that does nothing else, see the description of the script."""
    before = _resident("VmRSS")
    _forget_peak()
    worker = worker_of(folder, way)
    read = _resident("VmHWM") - before
    _forget_peak()
    gradients(worker)
    return {
        "base_mb": sum(t.numel() * t.element_size() for t in frozen(worker)) / 1e6,
        "read_mb": read,
        "step_mb": _resident("VmHWM") - before,
    }


def frozen(worker: Worker) -> list[torch.Tensor]:
    """Return all tensors of a model that are not trained, each of them once."""
    kept = (p for p in worker.model.parameters() if not p.requires_grad)
    return list({t.data_ptr(): t for t in (*kept, *worker.model.buffers())}.values())


def _resident(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{key}:"))


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_bytes(b"5")


def in_a_process(folder: str, way: str) -> dict[str, float]:
    """Measure `memory` in a process that has all modules of this one and nothing else."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(memory, (folder, way))


def stored(size: dict[str, int], scratch: Path) -> str:
    """Store a random decoder as a folder."""
    import transformers

    folder = str(scratch / f"{size['width']}-{size['layers']}")
    save_small_llama(Path(folder), **size, tokens=TOKENS)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    whole.save_pretrained(folder)
    return folder


def of_size(
    size: dict[str, int], folder: str, found: dict[str, Any], repeats: int
) -> list[dict[str, Any]]:
    """Return a row for each way to keep a model of this size.

    Args:
        found: the result of `memory` for each way.
    """
    count = parameters_of(folder)
    assert count is not None
    rows = [{**size, "parameters": count, "kept": way, **found[way]} for way in WAYS]
    workers = {way: worker_of(folder, way) for way in WAYS}
    turns = interleaved(
        {way: partial(gradients, worker) for way, worker in workers.items()}, repeats
    )
    expected = gradients(workers["float32"])
    for row in rows:
        worker = workers[row["kept"]]
        row["time"] = ratio(turns, row["kept"], "float32")
        row["loss"] = loss(worker)
        row["gradient_difference"] = float((gradients(worker) - expected).norm() / expected.norm())
    return rows


def trained(rounds: int, seeds: int, scratch: Path) -> list[dict[str, Any]]:
    """Return the embedded model's loss on held-out notes, before and after a few private rounds."""
    rows = []
    for way in TRAINED:
        dtype, quantize = WAYS[way]
        overrides = [f"job.rounds={rounds}", f"evaluation.every={rounds}", "job.engine=inline"]
        overrides += ["model.max_length=64", "privacy.sample_rate=0.1", "evaluation.limit=60"]
        overrides += [f"compute.dtype={dtype}", "compute.device=cpu", "compute.workers=1"]
        overrides += [f"model.quantize={quantize}"] if quantize else []
        for seed in range(seeds):
            job = load_job(HOSPITALS, [*overrides, f"job.seed={seed}"])
            out = scratch / f"{way}-{seed}"
            outcome = simulate(job, out, source=HOSPITALS, insecure_seed=seed)
            before, after = outcome.baseline.eval_loss, outcome.rounds[-1]["eval_loss"]
            rows.append(
                {"kept": way, "seed": seed, "rounds": rounds, "before": before, "after": after}
            )
    return rows


def show(sizes: list[dict[str, Any]], notes: list[dict[str, Any]]) -> None:
    table = Table(
        "parameters",
        "kept",
        "base MB",
        "read MB",
        "step MB",
        "time",
        "loss",
        "gradient",
    )
    for row in sizes:
        table.add_row(
            f"{row['parameters'] / 1e6:.1f} M",
            row["kept"],
            *(f"{row[key]:.0f}" for key in ("base_mb", "read_mb", "step_mb")),
            f"{row['time']:.2f}",
            f"{row['loss']:.4f}",
            f"{row['gradient_difference']:.1%}",
        )
    Console(width=120).print(table)
    table = Table("kept", "loss before", "loss after", "difference")
    full = {row["seed"]: row["after"] for row in notes if row["kept"] == "float32"}
    for way in TRAINED:
        rows = [row for row in notes if row["kept"] == way]
        table.add_row(
            way,
            f"{statistics.mean(row['before'] for row in rows):.4f}",
            f"{statistics.mean(row['after'] for row in rows):.4f}",
            f"{statistics.mean(row['after'] - full[row['seed']] for row in rows):+.4f}",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.quick:
        arguments.repeats, arguments.rounds, arguments.seeds = 1, 1, 1
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        wanted = [(size, stored(size, place)) for size in (QUICK if arguments.quick else SIZES)]
        worker_of("embedded", "4bit")  # so that everything is imported before memory is counted
        # Before this process computes much, because a new process also has the memory that this one
        # took.
        found = {f: {way: in_a_process(f, way) for way in WAYS} for _, f in wanted}
        sizes = [
            row
            for size, folder in wanted
            for row in of_size(size, folder, found[folder], arguments.repeats)
        ]
        notes = trained(arguments.rounds, arguments.seeds, place)
    show(sizes, notes)
    if arguments.json:
        arguments.json.write_text(json.dumps({"sizes": sizes, "notes": notes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
