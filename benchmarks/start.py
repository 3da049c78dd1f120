"""Measure what a private run costs before its first step, beside that step.

    python benchmarks/start.py --model FOLDER

A start tries on random texts whether each record's gradient is its own. Where batches pay, it also
tries how many records may be computed at once. Each start is a process of its own with one thread.
The second finds what the first has kept. Seconds are the processor's. Those of a start do not
include the loading of the model. Chats are random, of at most `--tokens` tokens. Without --model
the base is a random Llama of SmolLM2-135M's shape.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from serving import random_base

WORDS = "pain fever left right knee visit since days mild blood test shows normal"
JOBS = ((300, 8, 30), (3_000, 96, 200))  # chats, expected batch of a step, steps


def chats(count: int, words: int) -> list[dict[str, Any]]:
    """Make chats of random words."""
    drawn = np.random.default_rng(0)

    def text() -> str:
        return " ".join(drawn.choice(WORDS.split(), drawn.integers(3, words // 3)))

    roles = ("user", "assistant")
    return [{"messages": [{"role": r, "content": text()} for r in roles]} for _ in range(count)]


def start(folder: str, tokens: int, job: tuple[int, int, int], steps: int) -> tuple[float, float]:
    """Start a run and take steps. Return the processor's seconds of the start and of a step."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import fedpriv

    torch.set_num_threads(1)
    count, batch, planned = job
    tokenizer = AutoTokenizer.from_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model, records = get_peft_model(base, lora), chats(count, tokens)
    began = time.process_time()
    step = fedpriv.PrivateStep(
        model, tokenizer, records, epsilon=8, delta=1e-5, size=count, batch=batch, steps=planned,
        max_length=tokens, max_records_per_unit=1, max_empty=1,
    )  # fmt: skip
    ready = time.process_time()
    for _ in range(steps):
        step.backward()
    return ready - began, (time.process_time() - ready) / steps


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3, help="that are timed")
    asked = parser.parse_args()
    table = Table("chats", "a step", "steps", "start, first s", "second", "step s", "starts / step")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDPRIV_CACHE"] = f"{folder}/kept"
        if asked.model is None:
            asked.model = Path(folder, "base")
            random_base(asked.model)
        for job in JOBS:
            found = []
            for _ in range(2):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    given = (str(asked.model), asked.tokens, job, asked.steps)
                    found.append(pool.apply(start, given))
            (first, _), (second, _) = found
            step = float(np.mean([took for _, took in found]))
            shares = f"{first / step:.1f}, {second / step:.1f}"
            table.add_row(*map(str, job), f"{first:.1f}", f"{second:.1f}", f"{step:.2f}", shares)
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
