"""Does joining pay in the embedded federation, at every clinic that is looked at?

    python benchmarks/clinics.py --out clinics                # or --clinics 64, for all of them
    python benchmarks/clinics.py --out clinics-quick --quick  # does everything run?

The federation is that of the package: 64 clinics of 16 notes, a secure sum in which one may
collude, ε = 4. A quarter of the clinics, spread over the list, also train alone and go on from the
adapter. All models are scored on each clinic's own held-out notes, which nobody trains on. The
models are those of benchmarks/border.py. For each clinic and each model the table shows how much
lower the loss is than with training alone without noise: mean and deviation over the seeds, and how
many deviations the mean is. Then it shows how much lower the loss of all three is than that of two
own models, which take as much training. The last table shows what a clinic has without joining, if
it trains one, two or more models alone, each with another seed, which answer together with equal
weights. Beside it is the same number of models of which one is personal and one the federation's.

OUT keeps all runs. The same command goes on where it was stopped. `clinics.json` and `clinics.md`
have all figures. The data is public and no run is private: samples and noise come from seeds.
"""

from __future__ import annotations

import argparse
import logging
import re
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from border_design import KINDS, QUICK_PASSES, Point, Size
from border_report import gains as gains_of
from border_runs import Entry, measured, train
from mixtures import together

from fedpriv.config.load import EMBEDDED, load_job
from fedpriv.errors import FedprivError
from fedpriv.files import write_atomic, write_json
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.private_training.pool import WorkerPool
from fedpriv.process import stop_on_terminate
from fedpriv_comparison.held_out_scores import own_examples
from fedpriv_comparison.runner import Runner, open_folder
from fedpriv_comparison.trial import Result, Trial, values_path

FORMAT = 1
FIFTH = 0.2  # the weight of the federation's adapter beside others
MODELS = {
    "federated": "federated",
    "federated+personal": "personal",
    "federated+fifth": "alone + fifth",
    "federated+both": "all three",
    "alone+alone": "two own",
}
Gains = dict[str, dict[str, list[float]]]  # for each model, at each clinic, with each seed


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("clinics"))
    parser.add_argument("--clinics", type=int, default=16, help="that are looked at")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--json", type=Path, help="clinics.json here, too")
    parser.add_argument("--quick", action="store_true", help="two rounds, one seed, two clinics")
    return parser.parse_args()


def write_federation(out: Path, point: Point) -> Path:
    """Write the embedded federation, where only the clinics that are looked at hold notes out."""
    folder = EMBEDDED.parent
    lines, found = [], 0
    for line in EMBEDDED.read_text(encoding="utf-8").splitlines():
        if line.startswith(("trust =", "max_colluding =")):  # a point states these
            continue
        if "held_out = " in line:
            if found not in point.scored:
                line = re.sub(r', held_out = "[^"]*"', "", line)
            found += 1
        lines.append(re.sub(r'"([^"]*\.jsonl\.gz)"', rf'"{folder}/\1"', line))
    out.mkdir(parents=True, exist_ok=True)
    file = out / "federation.toml"
    write_atomic(file, "\n".join([*lines, ""]))
    return file


def gains(found: list[dict[str, Any]], names: list[str]) -> Gains:
    """Return how much lower the loss is than alone, on each clinic's own notes."""
    made: Gains = {}
    for title, way, other in (
        *((title, way, "alone") for way, title in MODELS.items()),
        ("all three over two own", "federated+both", "alone+alone"),
    ):
        by_seed = (gains_of(row, way, other) for row in found)
        made[title] = dict(zip(names, map(list, zip(*by_seed, strict=True)), strict=True))
    return made


def shown(values: list[float]) -> str:
    """Write mean and deviation, and how many deviations the mean is."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:+.3f}"
    deviation = statistics.stdev(values)
    return f"{mean:+.3f} ± {deviation:.3f} ({mean / deviation:.0f})"


def markdown(made: Gains, found: list[dict[str, Any]], names: list[str]) -> str:
    """Write the table, with a row for each clinic."""
    alone = {
        name: statistics.fmean(row["own"]["alone"][index] for row in found)
        for index, name in enumerate(names)
    }
    rows = [["clinic", "alone", *made], ["---"] * (len(made) + 2)]
    rows += [
        [name, f"{alone[name]:.3f}", *(shown(of_model[name]) for of_model in made.values())]
        for name in names
    ]
    means = [
        [statistics.fmean(by_seed) for by_seed in zip(*of_model.values(), strict=True)]
        for of_model in made.values()
    ]
    rows.append(["**mean**", f"{statistics.fmean(alone.values()):.3f}", *map(shown, means)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def own_together(entries: Sequence[Entry], out: Path) -> list[dict[str, float]]:
    """Return the mean own loss of 1, 2, … models together, without and with the federation's.

    With the federation's, it and the personal model have a fifth of the weight each if there are at
    least two own models. Otherwise they have the weights of `benchmarks/border.py`.
    """
    values = [
        {name: np.load(values_path(trial, out / "runs")) for name, trial in entry.trials.items()}
        for entry in entries
    ]
    alone = [*(one["alone"] for one in values), values[-1]["again"]]
    config = entries[0].trials["federated"].config
    rows: list[dict[str, float]] = []
    with WorkerPool(1).borrow(job_recipe(config)) as worker:
        sites = list(own_examples(config, worker).values())

        def mean_loss(parts: Callable[[int], list[tuple[Vector, float]]]) -> float:
            return statistics.fmean(
                together(worker, parts(index))([*site.reported, *site.tuning]).eval_loss
                for index, site in enumerate(sites)
            )

        def with_federated(index: int, own: int) -> list[tuple[Vector, float]]:
            share = FIFTH if own > 1 else (1 - FIFTH) / 2
            others = 1 - FIFTH - share
            return [
                *((alone[seed][index], others / own) for seed in range(own)),
                (values[0]["federated+personal"][index], share),
                (values[0]["federated"], FIFTH),
            ]

        def without(index: int, own: int) -> list[tuple[Vector, float]]:
            return [(alone[seed][index], 1 / own) for seed in range(own)]

        for count in range(1, len(alone) + 1):
            row = {"models": count, "alone": mean_loss(partial(without, own=count))}
            if count > 2:
                row["federation's among them"] = mean_loss(partial(with_federated, own=count - 2))
            rows.append(row)
    return rows


# The table was measured with these. Without them each clinic chooses by cross-validation, which
# takes longer.
SET_PASSES = (
    "personal.validation=0",
    "personal.rates=[3e-3]",
    "personal.epochs=16",
    "personal.epochs_alone=32",
)


def main() -> int:
    arguments = parsed()
    logging.getLogger("fedpriv_client").setLevel(logging.ERROR)
    stop_on_terminate()
    embedded = load_job()
    rounds, clinics, seeds = embedded.job.rounds, arguments.clinics, arguments.seeds
    overrides = [f"evaluation.every={rounds}", *SET_PASSES]
    if arguments.quick:
        rounds, clinics, seeds = 2, 2, 1
        overrides += ["job.rounds=2", *QUICK_PASSES, "evaluation.limit=8"]
    point = Point(len(embedded.sites), 16, seeds=seeds, most_scored=clinics)
    kind = replace(KINDS["notes"], name="clinics", points=(point,))
    size = Size(rounds=rounds, overrides=tuple(overrides))

    def done(trial: Trial, result: Result) -> None:
        said = result.error or result.last("eval_loss")
        print(f"{trial.key} seed {trial.seed}: {said}", flush=True)

    try:
        with open_folder(arguments.out / "runs"):
            file = write_federation(arguments.out, point)
            names = [site.name for site in load_job(file).sites if site.held_out is not None]
            entries = [Entry(kind, point, seed, file, size) for seed in range(1, seeds + 1)]
            runner = Runner(arguments.out / "runs", parallel=arguments.parallel, done=done)
            found = []
            for entry in entries:
                train([entry], runner)
                found.append(measured(entry, arguments.out))
                made = gains(found, names)
                text = markdown(made, found, names)
                write_atomic(arguments.out / "clinics.md", text)
            without = own_together(entries, arguments.out)
            command = shlex.join(["python", "benchmarks/clinics.py", *sys.argv[1:]])
            document = {"format": FORMAT, "command": command, "clinics": names, "runs": found}
            for path in (arguments.out / "clinics.json", arguments.json):
                if path is not None:
                    write_json(path, {**document, "together": without})
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from here.")
        return 130
    except (FedprivError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(text)
    for row in without:
        print(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
