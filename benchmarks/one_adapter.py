"""Can one adapter of a clinic be as good as its three models that answer together?

    python benchmarks/one_adapter.py --out one-adapter --json docs/results/one_adapter.json
    python benchmarks/one_adapter.py --out one-adapter-quick --quick    # does everything run?

The clinics are some of the embedded federation, and their models those of benchmarks/clinics.py:
*alone*, *two own*, *personal*, *federated* and *all three* together. Then one adapter is trained to
answer as all three do (`fedpriv/personal/single.py`). Another one is trained to answer as the two
own ones do, because a clinic can do so without anybody. Both have a larger rank than the job; one
row has the job's own rank. *averaged* is where they begin: the mean of the models' weights. Loss is
on each clinic's own held-out notes. Settings were chosen at other clinics (`CHOSEN_AT`).

*trained* is the training of all that a row takes, as multiples of that of alone and personal. It is
counted in notes and texts whose gradients are computed. OUT keeps all models. The same command goes
on where it was stopped. The data is public and no run is private: samples and noise come from
seeds.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from border_design import KINDS, QUICK_PASSES, Point, Size
from border_runs import FIFTH, Entry
from clinics import SET_PASSES, write_federation
from mixtures import own_and_federated, together

from fedpriv.config.load import load_job
from fedpriv.errors import FedprivError
from fedpriv.files import replacing, write_json
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.personal.records import OwnParts
from fedpriv.personal.single import OWN, RANK, WRITTEN, distil, follow, widened, wider, write
from fedpriv.personal.together import Model
from fedpriv.personal.training import train_alone
from fedpriv.private_training.pool import WorkerPool, make_worker
from fedpriv.private_training.worker import Worker
from fedpriv.process import stop_on_terminate
from fedpriv_comparison.held_out_scores import OwnExamples, as_it_is, own_examples
from fedpriv_comparison.runner import Runner, open_folder
from fedpriv_comparison.trial import values_path

FORMAT = 1
CLINICS = 13  # spread over the list; the settings were chosen at some of them
CHOSEN_AT = ("general-medicine-2", "psychiatry-2", "surgery-6", "surgery-16", "urology-6")
FEWER = 18  # texts for each note
HOURS = 2.0  # of one core of 2026, a third of it for the federation
Losses = dict[str, dict[str, float]]  # for each row, at each clinic
Together = list[tuple[Vector, float]]  # models, with their weights


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("one-adapter"))
    parser.add_argument("--json", type=Path, help="figures here, too")
    parser.add_argument("--quick", action="store_true", help="two rounds, two notes")
    return parser.parse_args()


@dataclass(frozen=True, eq=False)
class Clinic:
    """Hold what is trained at a clinic, in a folder.

    Attributes:
        workers: workers by rank. The job's rank is the least.
    """

    name: str
    own: OwnExamples
    entry: Entry
    federated: Vector
    again: Vector
    workers: dict[int, Worker]
    folder: Path

    @property
    def job(self) -> Worker:
        """Return the worker of the job's own shape."""
        return self.workers[min(self.workers)]

    def kept(self, name: str, make: Callable[[], Vector]) -> Vector:
        """Return values that are kept, or make them."""
        path = self.folder / f"{self.name}-{name.replace(' ', '-')}.npy"
        if not path.exists():
            made = make()
            with replacing(path) as part, part.open("wb") as stream:
                np.save(stream, made)
        values: Vector = np.load(path)
        return values

    def trained(self, what: str) -> Vector:
        """Train the model alone, again or personal, as `benchmarks/clinics.py` does."""
        trial = self.entry.trials["federated+personal" if what == "personal" else what]
        starts = {"alone": self.job.initial, "again": self.again, "personal": self.federated}
        settings = trial.config.personal.beginning("personal" if what == "personal" else "alone")

        def make() -> Vector:
            made = train_alone(self.job, starts[what], self.own.training, settings, seed=trial.seed)
            return made.values

        return self.kept(what, make)

    def three(self) -> Together:
        """Return all three models, with their weights."""
        own = [self.trained("alone"), self.trained("personal")]
        return own_and_federated(own, self.federated, FIFTH)

    def two(self) -> Together:
        """Return two own models, with their weights."""
        return [(self.trained("alone"), 0.5), (self.trained("again"), 0.5)]

    def one(
        self, title: str, teachers: Together, rank: int, seed: int, written: int = WRITTEN
    ) -> Vector:
        """Train one adapter that answers as several models do together."""
        worker, job, records = self.workers[rank], self.job, self.own.training.everything

        def make() -> Vector:
            if worker is not job:
                return distil(worker, job, teachers, records, written=written, seed=seed)
            texts = write(job, teachers, records, written * len(records), seed=seed)
            personal = teachers[1][0]  # the job's rank has no room for all of them
            return follow(job, personal, teachers, [*OWN * records, *texts], seed=seed)

        return self.kept(f"{title} {rank} {seed} {written}", make)


def loss(clinic: Clinic, row: str) -> float:
    """Return a row's loss on all held-out notes of a clinic, after training what it needs."""
    title, _, how = row.partition(", ")
    job, wide = clinic.job, clinic.workers[RANK]
    worker, rank = (job, job.recipe.lora.r) if how == "job's rank" else (wide, RANK)
    seed = 2 if how == "another seed" else 1
    model: Model
    match title:
        case "two own":
            model = together(job, clinic.two())
        case "all three":
            model = together(job, clinic.three())
        case "federated":
            model = as_it_is(job, clinic.federated)
        case "averaged":
            model = as_it_is(wide, widened(wide, job, clinic.three()))
        case "one of three":
            written = FEWER if how == "fewer texts" else WRITTEN
            model = as_it_is(worker, clinic.one(title, clinic.three(), rank, seed, written))
        case "one of two own":
            model = as_it_is(worker, clinic.one(title, clinic.two(), rank, seed))
        case _:
            model = as_it_is(job, clinic.trained(title))
    return model([*clinic.own.reported, *clinic.own.tuning]).eval_loss


ALONE, PERSONAL, ONE = 32, 16, OWN + WRITTEN  # number of passes, or of records that take as long
ROWS = {  # what each row takes
    "alone": ALONE,
    "two own": 2 * ALONE,
    "federated": 0,
    "personal": PERSONAL,
    "all three": ALONE + PERSONAL,
    "averaged": ALONE + PERSONAL,
    "one of three, fewer texts": ALONE + PERSONAL + OWN + FEWER,
    "one of three": ALONE + PERSONAL + ONE,
    "one of two own": 2 * ALONE + ONE,
    "one of three, job's rank": ALONE + PERSONAL + ONE,
    "one of three, another seed": ALONE + PERSONAL + ONE,
}


def markdown(found: Losses) -> str:
    """Write the table: mean over the clinics, and share of the gain of all three over two own."""
    means = {row: statistics.fmean(at.values()) for row, at in found.items()}
    lines = ["| model | trained | loss | share of the gain |", "|---|---|---|---|"]
    for row, mean in means.items():
        cost = ROWS[row] / (ALONE + PERSONAL)
        share = (means["two own"] - mean) / (means["two own"] - means["all three"])
        lines.append(f"| {row} | {cost:.2f} | {mean:.3f} | {share:.0%} |")
    return "\n".join([*lines, ""])


def clinics(entry: Entry, out: Path, notes: int | None = None) -> Iterator[Clinic]:
    """Give the clinics that are reported, with at most `notes` notes to train on."""
    trials = entry.trials
    federated = np.load(values_path(trials["federated"], out / "runs"))
    with WorkerPool(1).borrow(job_recipe(trials["again"].config)) as other:
        again = other.initial
    recipe = job_recipe(trials["federated"].config)
    workers = {one.lora.r: make_worker(one) for one in (recipe, wider(recipe, 3))}
    folder = out / "models"
    folder.mkdir(exist_ok=True)
    job = workers[recipe.lora.r]
    for name, own in own_examples(trials["federated"].config, job).items():
        if name not in CHOSEN_AT:
            training = OwnParts((own.training.everything[:notes],), 0)
            own = replace(own, training=training)
            yield Clinic(name, own, entry, federated, again, workers, folder)


def main() -> int:
    arguments = parsed()
    torch.set_num_threads(1)
    logging.getLogger("fedpriv_client").setLevel(logging.ERROR)
    stop_on_terminate()
    job = load_job()
    rounds, count, passes = job.job.rounds, CLINICS, SET_PASSES
    if arguments.quick:
        rounds, count, passes = 2, 2, (*SET_PASSES, "job.rounds=2", *QUICK_PASSES)
    print(f"About {'0.1' if arguments.quick else HOURS} hours on one core.", flush=True)
    point = Point(len(job.sites), 16, seeds=1, most_scored=count)
    kind = replace(KINDS["notes"], name="clinics", points=(point,))
    size = Size(rounds=rounds, overrides=(f"evaluation.every={rounds}", *passes))
    command = shlex.join(["python", "benchmarks/one_adapter.py", *sys.argv[1:]])
    found: Losses = {}
    try:
        with open_folder(arguments.out / "runs"):
            entry = Entry(kind, point, 1, write_federation(arguments.out, point), size)
            Runner(arguments.out / "runs").results([entry.trials["federated"]])
            places = list(clinics(entry, arguments.out, 2 if arguments.quick else None))
            for row in ROWS:
                found[row] = {place.name: loss(place, row) for place in places}
                document = {"format": FORMAT, "command": command, "losses": found}
                write_json(arguments.out / "one_adapter.json", document)
                if arguments.json is not None:
                    write_json(arguments.json, document)
                print(f"{row}: {statistics.fmean(found[row].values()):.3f}", flush=True)
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from here.")
        return 130
    except (FedprivError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
