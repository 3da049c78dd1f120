"""Measure where a round's time goes: the sites' steps, the evaluation, and everything else.

    python benchmarks/round.py --json round.json

It runs the embedded federation for a few rounds and prints medians. Everything that is not a site's
step (messages, ledgers with their fsyncs, accountant, checkpoint, reports) is the overhead. None of
these rounds is evaluated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from fedpriv.config.load import HOSPITALS, load_job
from fedpriv_client import site as site_module
from fedpriv_simulation.simulate import simulate


def measure(rounds: int) -> dict[str, float]:
    """Measure the seconds a round: in all, and in the private steps."""
    spent: list[float] = []
    plain = site_module.private_step

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        result = plain(*arguments)
        spent.append(time.perf_counter() - started)
        return result

    config = load_job(HOSPITALS, [f"job.rounds={rounds}", f"evaluation.every={rounds + 1}"])
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(site_module, "private_step", timed),
    ):
        outcome = simulate(config, Path(folder) / "run", source=HOSPITALS)
    sites = len(config.sites)
    steps = [sum(spent[i * sites : (i + 1) * sites]) for i in range(rounds - 1)]
    seconds = [row["seconds"] for row in outcome.rounds[:-1]]
    return {
        "round": statistics.median(seconds),
        "steps": statistics.median(steps),
        "overhead": statistics.median(a - b for a, b in zip(seconds, steps, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measure(3 if arguments.quick else arguments.rounds)
    print("  ".join(f"{name} {value:.3f} s" for name, value in found.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
