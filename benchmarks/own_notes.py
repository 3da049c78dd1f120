"""Does a hospital gain by joining? On notes of its own patients, and on notes of all hospitals.

    python benchmarks/own_notes.py --json own-notes.json

Of the notes of each embedded hospital, one in five is kept to report on. Then each hospital trains
alone on the others, without clipping or noise, which it may do inside its own walls, and all of
them train together, each with noise for ε = 4. Both have the table's default settings. A model
is scored on the kept notes of the hospital that uses it ("own"), and on the embedded held-out notes
("all"). Samples and noise are drawn from a seed; the notes are public.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedpriv.config import JobConfig, load_job
from fedpriv.training.pool import WorkerPool
from fedpriv_comparison.public_training import train
from fedpriv_comparison.records import alone
from fedpriv_simulation.simulate import simulate

KEPT = 5  # one note in so many


def split(config: JobConfig, folder: Path) -> tuple[JobConfig, dict[str, Path]]:
    """The federation without the kept notes, and the file of those of each site."""
    sites, kept = [], {}
    for site in config.sites:
        assert isinstance(site.data, Path)
        with gzip.open(site.data, "rt", encoding="utf-8") as stream:
            lines = stream.readlines()
        random.Random(0).shuffle(lines)
        count = len(lines) // KEPT
        kept[site.name] = write(folder / f"{site.name}-kept.jsonl", lines[:count])
        data = write(folder / f"{site.name}.jsonl", lines[count:])
        sites.append(site.model_copy(update={"data": data, "size": len(lines) - count}))
    return config.model_copy(update={"sites": tuple(sites)}), kept


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(lines), encoding="utf-8")
    return path


def scored_on(config: JobConfig, own: Path) -> JobConfig:
    """The job, reporting on a hospital's own notes; `tuning` holds those of all hospitals."""
    evaluation = config.evaluation.model_copy(
        update={"data": own, "tuning": config.evaluation.data, "every": config.job.rounds}
    )
    return config.model_copy(update={"evaluation": evaluation})


def measure(config: JobConfig, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Losses of each way to train, of every hospital weighed by its kept notes."""
    together, kept = split(config, folder)
    counts = {name: len(path.read_text().splitlines()) for name, path in kept.items()}
    union = write(folder / "kept.jsonl", [path.read_text() for path in kept.values()])
    pool = WorkerPool()
    try:
        curves = {
            site.name: train(
                scored_on(alone(together, site.name), kept[site.name]), "lora", seed, pool
            )[0]
            for site in config.sites
        }
        outcome = simulate(
            scored_on(together, union),
            folder / "run",
            source=folder,
            insecure_seed=seed,
            pool=pool,
        )
    finally:
        pool.close()

    def mean(row: int, key: str) -> float:
        return sum(counts[name] * curves[name][row][key] for name in counts) / sum(counts.values())

    for name, row in (("base model", 0), ("each alone, no noise", -1)):
        yield {"way": name, "own": mean(row, "eval_loss"), "all": mean(row, "tuning_loss")}
    last = outcome.rounds[-1]
    yield {"way": "together, ε = 4", "own": last["eval_loss"], "all": last["tuning_loss"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two rounds, one seed")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    overrides = ["job.rounds=2"] if arguments.quick else []
    rows = []
    for seed in range(1 if arguments.quick else arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            for row in measure(load_job(None, overrides), seed, Path(folder)):
                rows.append({"seed": seed, **row})
                print(f"seed {seed}  {row['way']:22} own {row['own']:.3f}  all {row['all']:.3f}")
    for way in dict.fromkeys(row["way"] for row in rows):
        for key in ("own", "all"):
            found = [row[key] for row in rows if row["way"] == way]
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            print(f"{way:22} {key:3} {statistics.fmean(found):.3f} ± {spread:.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
