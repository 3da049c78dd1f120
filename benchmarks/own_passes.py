"""How many passes over a handful of notes, at which rate, and from where?

    fedpriv simulate --out run --set evaluation.every=30
    python benchmarks/own_passes.py run --json own-passes.json
    python benchmarks/own_passes.py run --quick   # does everything run?

A clinic with 16 notes can't keep some of them apart to stop by: three notes mislead as often as
they help. So the number of passes is a setting, as the learning rate is (`personal.validation = 0`),
and it is chosen here: at clinics of the embedded federation that no table of results looks at, their
held-out notes scored after every pass, from the base model (*alone*) and from the federation's
adapter (*personal*). For each beginning and rate: the pass with the lowest mean loss over the
clinics, and that loss.

RUN is the directory of a finished run of the embedded federation. The data is public.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from border_design import Point

from fedpriv.config.job import JobConfig
from fedpriv.config.load import load_job
from fedpriv.data import Example
from fedpriv.errors import FedprivError
from fedpriv.files import write_json
from fedpriv.personal.records import own_examples
from fedpriv.personal.training import passes
from fedpriv.training.adapter import read_facts, read_values
from fedpriv.training.pool import WorkerPool
from fedpriv.training.scores import score
from fedpriv.training.worker import ModelRecipe, Worker
from fedpriv_simulation.own_records import read_site, spec_of

SCORED = 16  # clinics that benchmarks/clinics.py looks at; none of them is used here
FORMAT = 1
Curves = dict[str, dict[float, dict[str, list[float]]]]  # beginning, rate, clinic: loss by pass


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--clinics", type=int, default=12)
    parser.add_argument("--rates", default="1.5e-3,3e-3,6e-3")
    parser.add_argument("--passes", type=int, default=30)
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


def curves(run: Path, clinics: int, rates: list[float], most: int) -> Curves:
    """Loss on held-out notes before the first pass and after each."""
    config = load_job()
    found: Curves = {}
    with WorkerPool(1).borrow(ModelRecipe.of(config)) as worker:
        adapter = run / "adapter"
        starts = {
            "alone": worker.initial,
            "personal": read_values(adapter, worker, read_facts(adapter)),
        }
        for name, training, held_out in records(config, worker, clinics):
            for title, start in starts.items():
                for rate in rates:
                    losses = [score(worker, held_out, start).eval_loss]
                    size = config.personal.batch_size
                    for values in passes(worker, start, training, rate, most, size, seed=0):
                        losses.append(score(worker, held_out, values).eval_loss)
                    found.setdefault(title, {}).setdefault(rate, {})[name] = losses
            print(name, flush=True)
    return found


def markdown(found: Curves) -> str:
    """The table: for each beginning and rate, the best number of passes, and losses around it."""
    rows = [["beginning", "rate", "best pass", "loss", "half as many", "half more"], ["---"] * 6]
    for title, by_rate in found.items():
        for rate, by_clinic in by_rate.items():
            mean = [statistics.fmean(at) for at in zip(*by_clinic.values(), strict=True)]
            best = min(range(len(mean)), key=mean.__getitem__)
            more = round(1.5 * best)
            around = [mean[best // 2], mean[more] if more < len(mean) else None]
            shown = ["" if loss is None else f"{loss:.3f}" for loss in (mean[best], *around)]
            rows.append([title, f"{rate:g}", str(best), *shown])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    arguments = parsed()
    rates = [float(rate) for rate in arguments.rates.split(",")]
    clinics, most = arguments.clinics, arguments.passes
    if arguments.quick:
        rates, clinics, most = rates[:1], 2, 2
    try:
        found = curves(arguments.run, clinics, rates, most)
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
