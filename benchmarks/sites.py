"""What a simulation of many sites holds in memory, in threads and in processes.

    pip install '.[simulation]'
    python benchmarks/sites.py --json sites.json

A tiny random model and 40 made-up notes a site; two sites compute at once. Every run is a process
of its own, and its memory is the largest sum of the resident sets of all its processes, looked at
ten times a second. Pages that processes share are counted for each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from small_llama import save_small_llama

from fedpriv.environment import set_environment

PAGE = os.sysconf("SC_PAGE_SIZE")
WORDS = ["fever", "cough", "pain", "chest", "heart", "lungs", "clear", "normal", "denies", "blood"]
RUN = """
import sys
from pathlib import Path
from fedpriv.config import load_job
from fedpriv_simulation.simulate import simulate
file = Path(sys.argv[1])
out = simulate(load_job(file), Path(sys.argv[2]), source=file)
print([row["seconds"] for row in out.rounds])
"""


def make_federation(folder: Path, model: Path, engine: str, sites: int, rounds: int) -> Path:
    draw = random.Random(0)
    names = [f"site-{number}" for number in range(sites)]
    for name in (*names, "held-out"):
        notes = [{"text": " ".join(draw.choices(WORDS, k=30))} for _ in range(40)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(n) + "\n" for n in notes))
    tables = "".join(f'[[sites]]\nname = "{n}"\ndata = "{n}.jsonl"\nsize = 40\n' for n in names)
    file = folder / "federation.toml"
    file.write_text(
        f'[job]\nname = "sites"\nrounds = {rounds}\nengine = "{engine}"\nmin_sites = {sites}\n'
        f'[model]\nname = "{model}"\nmax_length = 64\n'
        '[data]\ncolumns = { text = "text" }\n'
        "[lora]\nr = 2\nalpha = 4\n[optimizer]\nlr = 1e-2\n"
        "[privacy]\nepsilon = 6.0\ndelta = 1e-3\nsample_rate = 0.3\nclip_norm = 1.0\n"
        f'[evaluation]\ndata = "held-out.jsonl"\nevery = {rounds}\n'
        f"[compute]\nworkers = 2\n{tables}"
    )
    return file


def resident(session: int) -> int:
    """Bytes that the processes of a session hold."""
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            status = (folder / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(status[3]) == session:
            total += int(status[21]) * PAGE
    return total


def measure(engine: str, sites: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_small_llama(folder / "model", width=32, layers=2, heads=4, tokens=64)
        file = make_federation(folder, folder / "model", engine, sites, rounds)
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(file), str(folder / "run")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        most = 0
        while process.poll() is None:
            most = max(most, resident(process.pid))
            time.sleep(0.1)
        assert process.stdout is not None
        seconds = json.loads(process.stdout.read().splitlines()[-1])
    row = {"engine": engine, "sites": sites, "memory_mb": most / 1e6}
    return {**row, "seconds_per_round": sorted(seconds)[len(seconds) // 2]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    set_environment()
    if arguments.quick:
        arguments.sites, arguments.rounds = [2, 6], 2
    rows = [
        measure(engine, sites, arguments.rounds)
        for engine in ("inline", "ray")
        for sites in arguments.sites
    ]
    table = Table("engine", "sites", "MB", "seconds a round")
    for row in rows:
        table.add_row(
            row["engine"],
            str(row["sites"]),
            f"{row['memory_mb']:.0f}",
            f"{row['seconds_per_round']:.2f}",
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
