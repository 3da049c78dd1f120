"""How many passes over a handful of notes, at which rate, and from where?

    fedpriv simulate --out run
    python benchmarks/own_passes.py run --json own-passes.json
    python benchmarks/own_passes.py run --quick   # does everything run?

A clinic with 16 notes can't keep some of them apart to stop by: three notes mislead as often as
they help. So the number of passes is a setting (`personal.validation = 0`), as the learning rate
is. It is chosen here: at clinics of the embedded federation that no table of results looks at,
their held-out notes scored afterwards, from the base model (*alone*) and from the federation's
adapter (*personal*). A column for each rate × number of passes; mean loss over the clinics.

RUN is the directory of a finished run of the embedded federation, on public data.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from border_design import Point

from fedpriv.config.job import JobConfig
from fedpriv.config.load import load_job
from fedpriv.config.personal import OwnTraining
from fedpriv.data.encode import Example
from fedpriv.errors import FedprivError
from fedpriv.files import write_json
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.personal.records import OwnParts, own_examples
from fedpriv.personal.training import train_alone
from fedpriv.plain_training.adapter import read_facts, read_values
from fedpriv.plain_training.scores import score
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv_server.own_records import read_site, spec_of

SCORED = 16  # clinics that benchmarks/clinics.py looks at; none of them is used here
FORMAT = 1
Losses = dict[str, dict[str, dict[str, float]]]  # beginning, rate and passes, clinic


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--clinics", type=int, default=8)
    parser.add_argument("--rates", default="3e-3,5e-3")
    parser.add_argument("--passes", default="12,16,24,32,40")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="two clinics, two passes, one rate")
    return parser.parse_args()


def records(
    config: JobConfig, worker: Worker, clinics: int
) -> Iterator[tuple[str, list[Example], list[Example]]]:
    """Name, notes to train on and held-out notes of clinics that are spread over the list."""
    scored = Point(len(config.sites), 16, most_scored=SCORED).scored
    others = [site for index, site in enumerate(config.sites) if index not in scored]
    spec, tokenizer = spec_of(config), worker.base.tokenizer
    for number in range(clinics):
        site = others[(2 * number + 1) * len(others) // (2 * clinics)]
        with tempfile.TemporaryDirectory() as cache:
            own = read_site(site, spec, Path(cache))
            yield (
                site.name,
                own_examples(own.training, spec, tokenizer)[0],
                own_examples(own.held_out, spec, tokenizer)[0],
            )


def beginnings(worker: Worker, run: Path) -> dict[str, Vector]:
    """Where training begins, (P,) each, by name."""
    adapter = run / "adapter"
    personal = read_values(adapter, worker, read_facts(adapter))
    return {"alone": worker.initial, "personal": personal}


def losses(run: Path, clinics: int, rates: list[float], passes: list[int]) -> Losses:
    """Loss on held-out notes after so many passes, at a rate that falls to nothing."""
    config = load_job()
    found: Losses = {}
    with WorkerPool(1).borrow(job_recipe(config)) as worker:
        starts = beginnings(worker, run)
        for name, training, held_out in records(config, worker, clinics):
            for title, rate, count in itertools.product(starts, rates, passes):
                settings = OwnTraining((rate,), config.personal.batch_size, count, patience=1)
                made = train_alone(worker, starts[title], OwnParts((training,), 0), settings)
                loss = score(worker, held_out, made.values).eval_loss
                found.setdefault(title, {}).setdefault(f"{rate:g} × {count}", {})[name] = loss
            print(name, flush=True)
    return found


def markdown(found: Losses) -> str:
    """The table: mean loss over the clinics, the best in bold."""
    rows = [["beginning", *next(iter(found.values()))]]
    rows.append(["---"] * len(rows[0]))
    for title, by_setting in found.items():
        means = [statistics.fmean(by_clinic.values()) for by_clinic in by_setting.values()]
        shown = [f"**{mean:.3f}**" if mean == min(means) else f"{mean:.3f}" for mean in means]
        rows.append([title, *shown])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    arguments = parsed()
    rates = [float(rate) for rate in arguments.rates.split(",")]
    passes = [int(count) for count in arguments.passes.split(",")]
    clinics = arguments.clinics
    if arguments.quick:
        rates, passes, clinics = rates[:1], [1, 2], 2
    try:
        found = losses(arguments.run, clinics, rates, passes)
    except (FedprivError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(markdown(found))
    if arguments.json is not None:
        command = shlex.join(["python", "benchmarks/own_passes.py", *sys.argv[1:]])
        write_json(arguments.json, {"format": FORMAT, "command": command, "losses": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
