"""Measure what ten million records at one site take: a start, a step, and memory for each record.

    python benchmarks/records.py --json records.json

There are a tiny random model, and made-up records of six words. Every size is a process of its own,
in which one site takes part in a run of a few rounds. Each step has about 16 units, however many
there are. Memory is what the process itself holds (`RssAnon`, not the pages of mapped files, which
the system takes back when it needs them), beyond what it held with the model and no record. It is
measured when the site has started, and at its most. The floor is nothing for a record. For a
patient it is the id, while the records are read. A "patient" unit has ten records.

    python benchmarks/records.py --encode 10000000 --json encoded.json

encodes as many records, which are in no file. A job does so at a site that has read its records.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from small_llama import save_small_llama

from fedpriv.environment import set_environment

set_environment()
WORDS = ["fever", "cough", "pain", "chest", "heart", "lungs", "clear", "normal", "denies", "blood"]
TEXTS = 1000  # number of different texts
UNITS = 16  # in a step, approximately


def make_federation(folder: Path, records: int, unit: str, rounds: int) -> Path:
    draw = random.Random(0)
    save_small_llama(folder / "model", width=32, layers=2, heads=4, tokens=64)
    each = 10 if unit == "patient" else 1
    for name, count in (("notes", records), ("held-out", UNITS)):
        texts = [" ".join([name, *draw.choices(WORDS, k=5)]) for _ in range(TEXTS)]
        with (folder / f"{name}.jsonl").open("w") as stream:
            for number, text in enumerate(itertools.islice(itertools.cycle(texts), count)):
                row = {"text": text, "patient": f"p{number // each}"}
                stream.write(json.dumps(row) + "\n")
    size = records // each
    file = folder / "federation.toml"
    file.write_text(
        f'[job]\nname = "records"\nrounds = {rounds}\nmin_sites = 1\n'
        "data_is_public = true\n"  # made up: or no duration is written (law 19)
        f'[model]\nname = "{folder / "model"}"\nmax_length = 64\n'
        '[data]\ncolumns = { text = "text" }\n[lora]\nr = 2\nalpha = 4\n'
        f'[privacy]\nepsilon = 6.0\ndelta = {0.1 / size}\nunit = "{unit}"\nclip_norm = 1.0\n'
        f"max_records_per_unit = {each}\nsample_rate = {min(0.5, UNITS / size)}\n"
        f'[evaluation]\ndata = "held-out.jsonl"\nevery = {rounds}\n[compute]\nworkers = 1\n'
        f'[[sites]]\nname = "site"\ndata = "notes.jsonl"\nsize = {size}\n'
    )
    return file


def own_bytes() -> int:
    """Return how much memory this process holds by itself."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return int(kilobytes) * 1024


class Peak(threading.Thread):
    """Look twenty times a second at what the process holds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0

    def run(self) -> None:
        while True:
            self.most = max(self.most, own_bytes())
            time.sleep(0.05)


def median_ms(what: Callable[[int], Any], times: int = 9) -> float:
    found = []
    for number in range(times):
        started = time.perf_counter()
        what(number)
        found.append(time.perf_counter() - started)
    return 1e3 * statistics.median(found)


def measure(records: int, unit: str, rounds: int) -> dict[str, Any]:
    """Measure one size in this process."""
    from fedpriv.config.load import load_job
    from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation, Terms
    from fedpriv.privacy.ledger.terms import new_dataset_id
    from fedpriv.privacy.mechanism.csprng import SystemCsprng
    from fedpriv.privacy.mechanism.sampling import poisson_sample
    from fedpriv_simulation import simulate as module

    with tempfile.TemporaryDirectory() as name:
        file = make_federation(Path(name), records, unit, rounds)
        config, peak = load_job(file), Peak()
        at: dict[str, Any] = {}

        def preparing(text: str) -> None:
            if text == "Preparing site":  # the model is loaded
                at["model"], at["begun"] = own_bytes(), time.perf_counter()
                peak.start()

        def started(job: Any) -> None:
            at["started"], at["seconds"] = own_bytes(), time.perf_counter() - at["begun"]

        progress = module.Progress(preparing, started)
        outcome = module.simulate(config, Path(name) / "run", source=file, progress=progress)
        population, rate = config.sites[0].size or 0, config.privacy.sample_rate
        csprng = SystemCsprng()
        plan = Plan("job", "dp-lora", rate, 1.0, 1.0, 9, "sha256:" + "0" * 64)
        terms = Terms(new_dataset_id(), population, "record", 1, 0.1 / population, 1e3, True)
        reply = np.zeros(outcome.run.info["model"]["trainable"], np.float32).tobytes()
        with Ledger.create(Path(name) / "scratch.db", terms) as ledger:
            ledger.commit(plan)

            def pay(slot: int) -> None:
                paid = ledger.reserve("job", slot, "request")
                assert isinstance(paid, Reservation)
                ledger.release(paid, reply)

            os.sync()  # otherwise a payment waits for the records' own files to reach the disk
            ledger_ms = median_ms(pay)
        return {
            "unit": unit,
            "records": records,
            "start_seconds": at["seconds"],
            "start_us_per_record": 1e6 * at["seconds"] / records,
            "sampling_ms": median_ms(lambda _: poisson_sample(population, rate, csprng)),
            "ledger_ms": ledger_ms,
            "round_ms": 1e3 * statistics.median(row["seconds"] for row in outcome.rounds[:-1]),
            "held_mb": (at["started"] - at["model"]) / 1e6,
            "peak_mb": (peak.most - at["model"]) / 1e6,
        }


def encode(records: int, unit: str) -> dict[str, Any]:
    """Measure what `encode_population` takes, and then the reading of a sampled unit."""
    from transformers import AutoTokenizer

    from fedpriv.data.population import encode_population
    from fedpriv.data.spec import DataSpec
    from fedpriv.data.store import TokenFile

    each = 10 if unit == "patient" else 1
    draw, peak = random.Random(0), Peak()
    texts = [" ".join(draw.choices(WORDS, k=6)) for _ in range(TEXTS)]
    rows = (
        {"text": text, "unit": f"p{number // each}"}
        for number, text in enumerate(itertools.islice(itertools.cycle(texts), records))
    )
    spec = DataSpec({"text": "text"}, "causal-lm", (), 64, unit, each)
    with tempfile.TemporaryDirectory() as name:
        save_small_llama(Path(name) / "model", width=32, layers=2, heads=4, tokens=64)
        tokenizer = AutoTokenizer.from_pretrained(Path(name) / "model")
        encode_population(
            [{"text": text, "unit": text} for text in texts], spec, tokenizer, TokenFile(Path(name))
        )
        before, started = own_bytes(), time.process_time()
        peak.start()
        found = encode_population(rows, spec, tokenizer, TokenFile(Path(name)))
        seconds, held = time.process_time() - started, own_bytes()
        places = [draw.randrange(len(found)) for _ in range(1000)]
        read_ms = median_ms(lambda number: found.units[places[number]], len(places))
    return {
        "unit": unit,
        "records": records,
        "cpu_us_per_record": 1e6 * seconds / records,
        "read_us": 1e3 * read_ms,
        "held_mb": (held - before) / 1e6,
        "peak_mb": (peak.most - before) / 1e6,
    }


def apart(records: int, unit: str, *options: str) -> dict[str, Any]:
    """Measure in a separate process."""
    command = [sys.executable, __file__, "--one", str(records), unit, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def with_slopes(rows: list[dict[str, Any]]) -> None:
    """Add the bytes that each further record takes, from one size to the next."""
    for before, row in itertools.pairwise(rows):
        if row["unit"] == before["unit"]:
            more = row["records"] - before["records"]
            for kind in ("held", "peak"):
                grown = row[f"{kind}_mb"] - before[f"{kind}_mb"]
                row[f"{kind}_bytes_per_record"] = 1e6 * grown / more


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("unit", "records", "start s", "µs a record", "sampling ms", "ledger ms")
    for title in ("round ms", "MB held", "at most", "bytes a record", "at most"):
        table.add_column(title)
    for row in rows:
        slopes = (row.get(f"{kind}_bytes_per_record") for kind in ("held", "peak"))
        table.add_row(
            row["unit"],
            f"{row['records']:,}",
            f"{row['start_seconds']:.1f}",
            f"{row['start_us_per_record']:.0f}",
            f"{row['sampling_ms']:.2f}",
            f"{row['ledger_ms']:.1f}",
            f"{row['round_ms']:.0f}",
            f"{row['held_mb']:.0f}",
            f"{row['peak_mb']:.0f}",
            *("" if slope is None else f"{slope:.0f}" for slope in slopes),
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--encode", type=int, nargs="*", help="this alone, with so many records")
    parser.add_argument("--units", nargs="+", default=["record", "patient"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.one:
        records, unit = int(arguments.one[0]), arguments.one[1]
        alone = arguments.encode is not None
        row = encode(records, unit) if alone else measure(records, unit, arguments.rounds)
        print(json.dumps(row))
        return
    if arguments.quick:
        arguments.records, arguments.rounds = [100, 1000], 2
    if arguments.encode is None:
        sizes, options = arguments.records, ["--rounds", str(arguments.rounds)]
    else:
        sizes, options = arguments.encode, ["--encode"]
    rows = []
    for unit, records in itertools.product(arguments.units, sizes):
        rows.append(apart(records, unit, *options))
        print(rows[-1], flush=True)
    if arguments.encode is None:
        with_slopes(rows)
        show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
