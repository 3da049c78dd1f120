"""Measure what a token of a site model costs, beside one adapter and beside a merged model.

    python benchmarks/serving.py --model FOLDER --json serving.json

Three adapters on one base answer each token together. All ways start from the same base and
adapters and write the same number of tokens after the same prompt. They run in turn, in one process
with one thread. A ratio is the median over turns. Reading the prompt is not counted. Times are the
processor's, because others may use the machine, and beside them the wall's. The floor is the time
to read the base's weights once, at the rate of a product of a large matrix with a vector, measured
here. Memory is what a separate process holds while it writes, beyond what it held before it loaded
the model. Without --model the base is a random Llama of SmolLM2-135M's shape.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from interleaved import interleaved, median, ratio
from rich.console import Console
from rich.table import Table

NAMES = ("alone", "personal", "federated")
WAYS = ("site model", "one adapter (peft)", "merged")
PROMPT, READ = 64, 256  # tokens; MB
GOALS = {"time": 1.3, "memory": 1.1}


def random_base(folder: Path) -> None:
    """Write a random Llama of SmolLM2-135M's shape, and the embedded tokenizer."""
    import transformers

    from fedpriv.base_model import EMBEDDED

    config = transformers.LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=2048,
        tie_word_embeddings=True, dtype="bfloat16",
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(folder)


def write(base: Path, folder: Path, rank: int) -> None:
    """Write a site model with three random adapters."""
    from fedpriv.models.base import load_base
    from fedpriv.models.config import LoraSection, ModelSection
    from fedpriv.models.lora import attach_lora
    from fedpriv.models.vector import TrainableVector
    from fedpriv.plain_training.adapter import write_adapter
    from fedpriv.privacy.config import PrivacySection
    from fedpriv.private_training.config import ComputeSection
    from fedpriv.private_training.worker import ModelRecipe
    from fedpriv.protocol import Proposal
    from fedpriv.serving.write import write_site_model

    model = ModelSection(name=str(base), max_length=16)
    lora = LoraSection(r=rank, alpha=2 * rank)
    recipe = ModelRecipe(model, lora, 0, ComputeSection(device="cpu"))
    loaded = load_base(model, seed=0)
    trained = attach_lora(loaded, lora, "causal-lm", seed=0)
    vector = TrainableVector(trained)
    worker: Any = SimpleNamespace(model=trained, vector=vector)  # without a worker's trials
    start = vector.read()
    proposal = Proposal(
        job_id="job", method="dp-lora", steps=1, seed=0, fields=("text",), model=model,
        lora=lora, privacy=PrivacySection(epsilon=5.0, delta=1e-3, sample_rate=0.5),
        base_digest=loaded.digest, vector_digest=vector.digest,
    )  # fmt: skip
    for index, name in enumerate(NAMES):
        drawn = np.random.default_rng(index).normal(scale=0.01, size=vector.size)
        values = start + drawn.astype(np.float32)
        write_adapter(folder / name, worker, values, proposal, "", kind=name)  # type: ignore[arg-type]
    adapters = {name: folder / name for name in NAMES}
    weights = dict.fromkeys(NAMES, 1 / 3)
    write_site_model(folder / "model", recipe, adapters, weights, site="bench", job="job")


def load(way: str, folder: Path) -> Any:
    """Load a model in float32, by one of the ways."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from fedpriv.serving import load_site_model

    if way == WAYS[0]:
        return load_site_model(folder)
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(base, folder / NAMES[0])
    return (model.merge_and_unload() if way == WAYS[2] else model).eval()


@torch.inference_mode()
def go_on(model: Any, tokens: int) -> tuple[float, float]:
    """Read a prompt and write `tokens` tokens at batch 1.

    Return the writing's seconds, CPU and wall.
    """
    found = model(input_ids=torch.arange(PROMPT)[None] + 3, use_cache=True)
    started = time.process_time(), time.perf_counter()
    for _ in range(tokens):
        name = next(name for name in ("cache", "past_key_values") if name in found)
        given = {name: found[name], "use_cache": True}
        found = model(input_ids=found.logits[:, -1:].argmax(-1), **given)
    return time.process_time() - started[0], time.perf_counter() - started[1]


def held() -> int:
    """Return the bytes that this process holds by itself, without pages of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def memory(way: str, folder: Path) -> int:
    """Return the bytes that a model takes in a separate process while it writes."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_memory, (way, folder))


def _memory(way: str, folder: Path) -> int:
    torch.set_num_threads(1)
    from fedpriv.serving import load_site_model  # noqa: F401  # what is imported does not count

    before = held()
    model = load(way, folder)
    go_on(model, 16)
    return held() - before


def floor(model: Any) -> float:
    """Return the seconds to read the merged model's weights once."""
    numbers = READ << 18
    matrix, vector = torch.ones(numbers >> 10, 1 << 10), torch.ones(1 << 10)
    times = []
    for _ in range(9):
        started = time.process_time()
        matrix @ vector
        times.append(time.process_time() - started)
    rate = 4 * numbers / min(times)
    return sum(p.numel() * p.element_size() for p in model.parameters()) / rate


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="folder of the base model")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16, help="written in each turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        base, folder = given.model or Path(made) / "base", Path(made)
        if given.model is None:
            random_base(base)
        write(base, folder, given.rank)
        folder = folder / "model"
        taken = {way: memory(way, folder) for way in WAYS}
        models = {way: load(way, folder) for way in WAYS}
        found = measured(models, taken, given.tokens, given.turns)
    show(found)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


def measured(
    models: dict[str, Any], taken: dict[str, int], tokens: int, turns: int
) -> dict[str, Any]:
    """Time all ways in turn."""
    used: dict[str, list[tuple[float, float]]] = {way: [] for way in models}

    def case(way: str) -> None:
        used[way].append(go_on(models[way], tokens))

    interleaved({way: partial(case, way) for way in models}, turns)
    cpu, wall = (
        [{way: used[way][turn][clock] for way in models} for turn in range(1, turns + 1)]
        for clock in (0, 1)
    )
    rows = {
        way: {
            "cpu_ms": 1e3 * median(cpu, way) / tokens,
            "wall_ms": 1e3 * median(wall, way) / tokens,
            "cpu_ratio": ratio(cpu, way, WAYS[1]),
            "wall_ratio": ratio(wall, way, WAYS[1]),
            "bytes": taken[way],
            "memory_ratio": taken[way] / taken[WAYS[1]],
        }
        for way in WAYS
    }
    return {"ways": rows, "floor_ms": 1e3 * floor(models[WAYS[2]]), "goals": GOALS}


def show(found: dict[str, Any]) -> None:
    """Print a table."""
    table = Table("", "CPU ms a token", "× one adapter", "wall ms", "× one", "MB", "× one")
    for way, row in found["ways"].items():
        table.add_row(
            way,
            f"{row['cpu_ms']:.1f}",
            f"{row['cpu_ratio']:.2f}",
            f"{row['wall_ms']:.1f}",
            f"{row['wall_ratio']:.2f}",
            f"{row['bytes'] / 1e6:.0f}",
            f"{row['memory_ratio']:.2f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"Floor, weights read once: {found['floor_ms']:.1f} ms a token. Goals: {GOALS['time']} ×"
        f" the time and {GOALS['memory']} × the memory of one adapter."
    )


if __name__ == "__main__":
    main()
