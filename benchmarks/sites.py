"""Measure what a simulation of many sites takes: memory, files, time, in threads and processes.

    pip install '.[simulation]'
    python benchmarks/sites.py --json sites.json --chart sites.svg

It has a tiny random model and 16 made-up notes a site. Two sites compute at once, and each adds its
own noise. Every run is a separate process. Its memory is the largest sum of the resident sets of
all its processes, looked at ten times a second. Pages that processes share are counted for each.
Files and threads are the most that one of the processes had.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from small_llama import save_small_llama

from fedpriv.environment import set_environment
from fedpriv.files import write_atomic
from fedpriv.report.charts import Line, line_chart, standalone

PAGE = os.sysconf("SC_PAGE_SIZE")
WORDS = ["fever", "cough", "pain", "chest", "heart", "lungs", "clear", "normal", "denies", "blood"]
RUN = """
import sys
from pathlib import Path
from fedpriv.config.load import load_job
from fedpriv_simulation.simulate import simulate
file = Path(sys.argv[1])
out = simulate(load_job(file), Path(sys.argv[2]), source=file)
assert all(s["status"] == "ok" for row in out.rounds for s in row["sites"].values())
print([row["seconds"] for row in out.rounds])
"""
NOTES = 16


def make_federation(folder: Path, model: Path, engine: str, sites: int, rounds: int) -> Path:
    draw = random.Random(0)
    names = [f"site-{number}" for number in range(sites)]
    for name in (*names, "held-out"):
        notes = [{"text": " ".join(draw.choices(WORDS, k=30))} for _ in range(NOTES)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(n) + "\n" for n in notes))
    tables = "".join(
        f'[[sites]]\nname = "{n}"\ndata = "{n}.jsonl"\nsize = {NOTES}\n' for n in names
    )
    file = folder / "federation.toml"
    file.write_text(
        f'[job]\nname = "sites"\nrounds = {rounds}\nengine = "{engine}"\nmin_sites = {sites}\n'
        "data_is_public = true\n"  # made up: or no duration is written (law 19)
        f'[model]\nname = "{model}"\nmax_length = 64\n'
        '[data]\ncolumns = { text = "text" }\n'
        "[lora]\nr = 2\nalpha = 4\n[optimizer]\nlr = 1e-2\n"
        "[privacy]\nepsilon = 6.0\ndelta = 1e-3\nsample_rate = 0.3\nclip_norm = 1.0\n"
        f'[evaluation]\ndata = "held-out.jsonl"\nevery = {rounds}\n'
        f"[compute]\nworkers = 2\n{tables}"
    )
    return file


def held(session: int) -> dict[str, int]:
    """Return what a session's processes hold: bytes together, and the most files and threads."""
    total = files = threads = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            status = (folder / "stat").read_text().rpartition(") ")[2].split()
            if int(status[3]) != session:
                continue
            files = max(files, sum(1 for _ in (folder / "fd").iterdir()))
        except OSError:
            continue
        total += int(status[21]) * PAGE
        threads = max(threads, int(status[17]))
    return {"bytes": total, "files": files, "threads": threads}


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
        most = Counter[str]()
        while process.poll() is None:
            most |= Counter(held(process.pid))
            time.sleep(0.1)
        assert process.stdout is not None
        seconds = json.loads(process.stdout.read().splitlines()[-1])
    per_round = statistics.median(seconds)
    return {
        "engine": engine,
        "sites": sites,
        "memory_mb": most["bytes"] / 1e6,
        "files": most["files"],
        "threads": most["threads"],
        "seconds_per_round": per_round,
        "milliseconds_per_site": 1e3 * per_round / sites,
    }


def chart(rows: list[dict[str, Any]]) -> str:
    """Draw milliseconds of a round for each site, by the number of sites, as an SVG."""
    engines = dict.fromkeys(row["engine"] for row in rows)
    lines = [
        Line(
            engine,
            [
                (math.log10(row["sites"]), row["milliseconds_per_site"])
                for row in rows
                if row["engine"] == engine
            ],
            f"series-{index}",
        )
        for index, engine in enumerate(engines)
    ]
    svg = line_chart(
        "sites",
        lines,
        width=880,
        height=300,
        from_zero=True,
        across="sites",
        places=lambda place: f"{10**place:,.0f}",
        description="Milliseconds of a round for each site, by the number of sites",
    )
    return standalone(svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--engines", nargs="+", default=["inline", "ray"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path, help="time by sites, as SVG")
    arguments = parser.parse_args()
    set_environment()
    if arguments.quick:
        arguments.sites, arguments.rounds = [3], 2
    rows = []
    for engine in arguments.engines:
        for sites in arguments.sites:
            rows.append(measure(engine, sites, arguments.rounds))
            print(rows[-1], flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    if arguments.chart:
        write_atomic(arguments.chart, chart(rows))
    table = Table("engine", "sites", "MB", "files", "threads", "s a round", "ms a site")
    for row in rows:
        table.add_row(
            row["engine"],
            str(row["sites"]),
            f"{row['memory_mb']:.0f}",
            str(row["files"]),
            str(row["threads"]),
            f"{row['seconds_per_round']:.2f}",
            f"{row['milliseconds_per_site']:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
