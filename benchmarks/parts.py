"""Measure what a private step takes: its parts, strict numerics, PE-SGD, and the drawing of noise.

    python benchmarks/parts.py --json parts.json
    python benchmarks/parts.py --only parts     # or strict, normalise, pe-sgd, noise

**parts**: a decoder of 6 layers, 384 wide, with LoRA of rank 8 on query and value. A site has 8,000
made-up records of 128 tokens, of which 16 are in a step. Each part is the function that a site or a
server calls in a round. The ledger and the checkpoint are on the disk of ``--folder``, with their
fsyncs. **strict**: a step over 16 of the embedded federation's notes, default and strict.
**normalise**: the same step, clipped whole and with `privacy.normalise`.
**pe-sgd**: a step over 80 records by DP-LoRA, and by PE-SGD in the gradients of 200 others, which
are computed in every step. Its arithmetic floor is 280 gradients to 80. **noise**: values a second
as a release draws them, beside numpy's, which can't be relied on for privacy.

All cases of a group take turns in one process. A ratio is the median over turns.
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
from interleaved import Seconds, interleaved, median, ratio
from rich.console import Console
from rich.table import Table
from small_llama import save_small_llama

from fedpriv.config.load import HOSPITALS, load_job
from fedpriv.data.encode import Example
from fedpriv.data.population import encode_population, read_labelled
from fedpriv.data.spec import DataSpec
from fedpriv.data.store import TokenFile, UnitStore
from fedpriv.environment import set_environment
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.methods.pe_sgd.config import ProjectionSection
from fedpriv.methods.pe_sgd.site_half import PeSgd
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation, Terms
from fedpriv.privacy.mechanism.clip import ClippedSum, clip_and_sum
from fedpriv.privacy.mechanism.csprng import SystemCsprng
from fedpriv.privacy.mechanism.execution import PlanExecution, Work
from fedpriv.privacy.mechanism.grid import deviation, sum_step
from fedpriv.privacy.mechanism.noise import rounded_gaussian
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.privacy.mechanism.sampling import poisson_sample
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import VectorOptimizer
from fedpriv_server.checkpoint import Checkpoint

RECORDS, TOKENS, BATCH = 8000, 128, 16
RATE = BATCH / RECORDS
SLOTS = 1000
PE_BATCH, PE_SET = 80, 200
VALUES = 10**7  # of noise
Cases = dict[str, Callable[[], Any]]


def small_worker(folder: Path) -> Worker:
    save_small_llama(folder, width=384, layers=6, heads=6, tokens=TOKENS)
    model = ModelSection(name=str(folder), max_length=TOKENS)
    lora = LoraSection(r=8, alpha=16, target_modules=("q_proj", "v_proj"))
    return make_worker(ModelRecipe(model, lora, 0, ComputeSection(device="cpu")))


def make_units(folder: Path) -> UnitStore:
    store = TokenFile(folder).store()
    for row in np.random.default_rng(0).integers(3, 4096, (RECORDS, TOKENS)).tolist():
        store.append(store.add_unit(), Example(row, [-100, *row[1:]]))
    return store


def make_parts(worker: Worker, units: UnitStore, folder: Path) -> Cases:
    """Return as cases the step, and what comes before and after it."""
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
        "noise": lambda: PlanExecution(plan, size).step(
            Reservation._of(terms, plan, next(noised), "0" * 64),
            Work(0, lambda _: total, print),
            csprng,
        ),
        "ledger": pay_and_keep,
        "accounting": lambda: (ledger.epsilon_spent, ledger.epsilon_committed),
        "optimiser": lambda: optimizer.step(slope),
        "checkpoint": lambda: Checkpoint("job", 1, optimizer.state(), {}).write(
            folder / "latest.safetensors"
        ),
    }


def notes(worker: Worker, folder: Path) -> list[Any]:
    """Read 16 of the embedded federation's notes."""
    config = load_job(HOSPITALS)
    spec = DataSpec.of(config.data.columns, config.model, max_records_per_unit=1)
    data = config.sites[0].data or ""
    records = read_labelled(data, spec, cache_dir=folder, key="benchmark")
    population = encode_population(records, spec, worker.base.tokenizer, TokenFile(folder))
    return [population.units[index] for index in range(BATCH)]


def strict_cases(folder: Path) -> Cases:
    """Compare a clipped sum over the same notes, default and strict."""
    config = load_job(HOSPITALS)
    worker = make_worker(job_recipe(config))
    units = notes(worker, folder)
    clip_norm, values = config.privacy.clip_norm, worker.vector.read()
    return {
        "default": lambda: DpLora().clipped_sum(worker, units, values, clip_norm),
        "strict": lambda: DpLora().clipped_sum(worker, units, values, clip_norm, "strict"),
    }


def normalise_cases(folder: Path) -> Cases:
    """Compare a clipped sum over the same notes, clipped whole and normalised by adapters."""
    config = load_job(HOSPITALS)
    worker = make_worker(job_recipe(config))
    units, clip_norm = notes(worker, folder), config.privacy.clip_norm
    values = worker.vector.read()

    def case(method: DpLora) -> Callable[[], Any]:
        return lambda: method.clipped_sum(worker, units, values, clip_norm)

    return {"clipped whole": case(DpLora()), "normalised": case(DpLora(normalise=True))}


def pe_sgd_cases(batch: int, size: int) -> Cases:
    """Compare a step by DP-LoRA and one by PE-SGD, over the same records."""
    lora = LoraSection(r=4, alpha=8, target_modules="auto")
    worker = make_worker(ModelRecipe(ModelSection(max_length=TOKENS), lora, 0, ComputeSection()))
    noise = np.random.default_rng(2).normal(size=worker.vector.size) / 20
    vector = (worker.initial + noise).astype(np.float32)  # lora_B is 0 at the start
    units = [(record,) for record in made_up(batch, seed=0)]
    method = PeSgd(ProjectionSection(size=size), made_up(size, seed=1))

    def pe_sgd() -> torch.Tensor:
        method.prepare(worker, vector)
        return method.clipped_sum(worker, units, vector, 1.0).value

    return {"DP-LoRA": lambda: DpLora().clipped_sum(worker, units, vector, 1.0), "PE-SGD": pe_sgd}


def made_up(records: int, seed: int) -> tuple[Example, ...]:
    """Make up records of random tokens."""
    drawn = np.random.default_rng(seed).integers(3, 4096, (records, TOKENS))
    return tuple(Example(row, [-100, *row[1:]]) for row in drawn.tolist())


def noise_cases(values: int) -> Cases:
    """Draw noise as for a release of `values` values, at σ = C = 1."""
    spread = deviation(1.0, 1.0, sum_step(1.0, values))
    csprng, generator = SystemCsprng(), np.random.default_rng()
    return {
        "numpy": lambda: generator.standard_normal(values),
        "rounded_gaussian": lambda: rounded_gaussian(values, spread, csprng),
    }


def rows_of(group: str, cases: Cases, turns: list[Seconds]) -> list[dict[str, Any]]:
    """Return the median seconds of each case, and its ratio to the first."""
    first, *_ = cases
    return [
        {"group": group, "case": name, "seconds": median(turns, name), "of": first,
         "ratio": ratio(turns, name, first)}
        for name in cases
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["parts", "strict", "normalise", "pe-sgd", "noise"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    set_environment()
    torch.set_num_threads(1)
    quick, rows = arguments.quick, []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        groups: dict[str, Callable[[], Cases]] = {
            "parts": lambda: make_parts(small_worker(folder / "model"), make_units(folder), folder),
            "strict": lambda: strict_cases(folder),
            "normalise": lambda: normalise_cases(folder),
            "pe-sgd": lambda: pe_sgd_cases(*((8, 20) if quick else (PE_BATCH, PE_SET))),
            "noise": lambda: noise_cases(10**5 if quick else VALUES),
        }
        for group in [arguments.only] if arguments.only else groups:
            cases = groups[group]()
            turns = interleaved(cases, 2 if quick else arguments.repeats)
            rows += rows_of(group, cases, turns)
    table = Table("group", "case", "ms", "ratio", "to")
    for row in rows:
        shown = f"{1e3 * row['seconds']:.2f}", f"{row['ratio']:.3f}"
        table.add_row(row["group"], row["case"], *shown, row["of"])
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
