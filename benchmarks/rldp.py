"""RLDP's experiment at our size: what is a controller of the noise worth, and what leaks?

    python benchmarks/rldp.py DATA --out rldp-1                 # or rldp-4 --sites 4
    python benchmarks/rldp.py DATA --out rldp-quick --quick     # does everything run?

DATA holds narratives.jsonl.gz: a text for each hospital stay of the Diabetes 130-US hospitals data
(columns text and patient_nbr). The embedded model learns to go on with 300 of them, one of each
patient, by their first 96 tokens, with LoRA of rank 4, 40 steps of rate 0.12, at ε = 8, 2 and 0.5
(δ = 1e-5); one site has them all, or several have equal shares. Rows: `base`; `lora` without
privacy, and `lora-longer` with 200 steps, both of which the attacks have to catch; `dp-lora`
(none); and `dp-lora` with every controller, where sac is rewarded by 16 narratives of the
coordinator's own. Each row's learning rate (but that of lora-longer, 1e-2) is chosen by `fedpriv
compare`, on one half of 96 further narratives and a seed that is not reported; loss and perplexity
are those of 150 others. The same command goes on where it was stopped. First of all it says how
long it will take.

Attacks on each trained adapter, all by how far the loss fell from the base model's:
    membership  area under the ROC curve, of 150 narratives that were trained on against the
                150 reported ones; 0.5 is chance.
    exposure    log2(64 / rank) of a canary among 63 others of its form (Carlini et al. 2019);
                6 bits is a canary that is found at once, 1.4 bits is chance.
    Jaccard     of the runs of three letters in a canary's secret, and in what the model goes on
                with after the canary's beginning; 1 is a secret that it tells, 0 is chance.

Source:
    Khadangi et al., "Efficient Differentially Private Fine-Tuning of LLMs via Reinforcement
    Learning", arXiv 2507.22565. Of its abstract and the readme of its code are LoRA, δ, one ε
    (0.5), windows of 128 tokens, and attacks by membership and canaries; its section on data we
    could not read, so how many canaries it has, of what form and how often each is inserted is not
    known here. Ours: 8 records "The access code of patient 4821 is kxqzmwvb.", of which four are
    inserted once, and four 8 times, for which a claim for one record says less.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedpriv.config.job import JobConfig
from fedpriv.data.encode import encode_completion, encode_text
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.personal.generation import completions
from fedpriv.plain_training.scores import area_under_curve, losses_of
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv_audit.canaries import canaries
from fedpriv_audit.exposure import exposure, jaccard
from fedpriv_comparison.comparison import Comparison, Row, compare
from fedpriv_comparison.figures import Figures, figures
from fedpriv_comparison.runner import Runner, open_folder
from fedpriv_comparison.trial import values_path
from fedpriv_comparison.variants import parse_variants

EPSILONS = (8.0, 2.0, 0.5)
TIMES = (1, 1, 1, 1, 8, 8, 8, 8)  # that each canary is inserted
OFTEN = sorted(set(TIMES))
LENGTH = 96  # tokens
WIDTH = 170  # letters of a table, at least
SAC = "controller.name=sac:controller.data=rewards.jsonl:controller.sac.warm_up=10"
SCHEDULE = "controller.name=schedule:controller.schedule.end_clip=0.5"
ATTACKS = {"exposure": "bits", "jaccard": "Jaccard"}  # by canaries
CONTROLLERS = {
    "none": "",
    "fixed": "controller.name=fixed",
    "normalise": "controller.name=normalise",
    "quantile": "controller.name=quantile",
    "geometry": "controller.name=geometry",
    "schedule": SCHEDULE,
    "schedule-adaptive": f"{SCHEDULE}:controller.adaptive=true:controller.schedule.end_noise=0.5",
    "sac": SAC,
    "sac-adaptive": f"{SAC}:controller.adaptive=true",
}
LONGER = 5  # times as many steps, in which a model without privacy learns records by heart
PRIVATE = {name: f"dp-lora:{text}".rstrip(":") for name, text in CONTROLLERS.items()}
FEDERATION = """
[job]
name = "rldp"
rounds = {rounds}
min_sites = {sites}
data_is_public = true

[model]
name = "embedded"
max_length = {length}

[data]
columns = {{ text = "text" }}

[lora]
r = 4
alpha = 8
target_modules = "auto"

[privacy]
epsilon = {epsilon}
delta = 1e-5
sample_rate = 0.12
clip_norm = 1.0
max_records_per_unit = 1

[optimizer]
name = "adamw"
lr = 1e-2

[evaluation]
data = "reported.jsonl"
tuning = "tuning-0.jsonl"  # of the sites' own, by one half of which settings are chosen
every = {every}

[compute]
microbatch = 32
"""
Records = list[str]


@dataclass(frozen=True)
class Size:
    """How much of everything there is; the defaults are those of the experiment."""

    trained: int = 300
    reported: int = 150
    tuning: int = 96
    rewards: int = 16
    rounds: int = 40
    every: int = 10
    seeds: int = 3
    candidates: int = 64  # of a canary, itself among them
    grids: tuple[str, str] = ("lr=3e-3,1e-2,3e-2", "lr=3e-3,1e-2,3e-2")  # not private, private


QUICK = Size(40, 24, 16, 4, 2, 1, 1, 8, ("lr=1e-2", "lr=1e-2"))


@dataclass(frozen=True)
class Narratives:
    """Of different patients, in a random order."""

    trained: Records
    reported: Records
    tuning: Records
    rewards: Records

    @classmethod
    def read(cls, data: Path, size: Size) -> Narratives:
        """From a folder with narratives.jsonl.gz; a patient's first."""
        stays: dict[int, str] = {}
        with gzip.open(data / "narratives.jsonl.gz", "rt", encoding="utf-8") as stream:
            for row in map(json.loads, stream):
                stays.setdefault(row["patient_nbr"], row["text"])
        texts = iter(random.Random(0).sample(list(stays.values()), len(stays)))
        counts = (size.trained, size.reported, size.tuning, size.rewards)
        return cls(*([next(texts) for _ in range(count)] for count in counts))


def write(path: Path, texts: Records) -> None:
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    path.write_text("".join(lines), encoding="utf-8")


def write_federations(folder: Path, narratives: Narratives, sites: int, size: Size) -> None:
    """The records of all sites, canaries among them, and a file for each ε."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "reported.jsonl", narratives.reported)
    write(folder / "rewards.jsonl", narratives.rewards)
    planted = canaries(size.candidates, TIMES)
    inserted = [canary.records[0] for canary in planted for _ in range(canary.times)]
    records = [*narratives.trained, *inserted]
    random.Random(1).shuffle(records)
    for site in range(sites):
        write(folder / f"site-{site}.jsonl", records[site::sites])
        write(folder / f"tuning-{site}.jsonl", narratives.tuning[site::sites])
    for epsilon in EPSILONS:
        text = FEDERATION.format(
            rounds=size.rounds, sites=sites, length=LENGTH, epsilon=epsilon, every=size.every
        )
        for site in range(sites):
            text += f'\n[[sites]]\nname = "site-{site}"\ndata = "site-{site}.jsonl"\n'
            text += f'held_out = "tuning-{site}.jsonl"\nsize = {len(records[site::sites])}\n'
            text += f"epsilon = {epsilon}\n"
        (folder / f"federation-{epsilon:g}.toml").write_text(text, encoding="utf-8")


def without_privacy(size: Size) -> dict[str, str]:
    """The rows without privacy, and how `fedpriv compare` calls them."""
    longer = f"lora:job.rounds={LONGER * size.rounds}:lr=1e-2"
    return {"base": "base", "lora": "lora", "lora-longer": longer}


class Part:
    """One comparison: without privacy, or at one ε.

    Attributes:
        names: of its rows, and how `fedpriv compare` calls them.
    """

    def __init__(self, folder: Path, epsilon: float | None, size: Size, names: dict[str, str]):
        self.title = "without privacy" if epsilon is None else f"ε = {epsilon:g}"
        self.names = names
        self.file = folder / f"federation-{epsilon or EPSILONS[0]:g}.toml"
        self.out = folder / ("comparison-open" if epsilon is None else f"comparison-{epsilon:g}")
        self.grid = size.grids[epsilon is not None]
        self.baseline = names["lora" if epsilon is None else "none"]
        variants = parse_variants(list(names.values()), [self.grid])
        self.asked = Comparison.of(self.file, [], variants, size.seeds)

    def run(self, parallel: int) -> int:
        """Train what has not been trained yet."""
        command = [
            *("fedpriv", "compare", str(self.file), "--methods", ",".join(self.names.values())),
            *("--seeds", str(self.asked.seeds), "--grid", self.grid),
            *("--baseline", self.baseline, "--parallel", str(parallel), "--out", str(self.out)),
        ]
        print(" ".join(command), flush=True)
        return subprocess.run(command, check=False).returncode

    def measured(self, attack: Callable[[Vector], dict[str, float]]) -> list[dict[str, Any]]:
        """What came of each row, with attacks on every run that is reported."""
        with open_folder(self.out / "runs"):
            rows = compare(self.asked, Runner(self.out / "runs"))
        found = figures(self.asked, rows, self.baseline)
        return [
            {"row": name, "terms": self.title, **self._row(row, came, attack)}
            for name, row, came in zip(self.names, rows, found, strict=True)
        ]

    def _row(
        self, row: Row, came: Figures, attack: Callable[[Vector], dict[str, float]]
    ) -> dict[str, Any]:
        runs = []
        for seed, result in enumerate(row.results, 1):
            if result.error or row.settings is None:
                continue
            trial = self.asked.trial(row.variant, row.settings, seed)
            loss = result.rounds[-1]["eval_loss"]
            runs.append(
                {
                    "seed": seed,
                    "loss": loss,
                    "perplexity": math.exp(loss),
                    "epsilon_spent": result.epsilon,
                    "epsilon_committed": result.epsilon_committed,
                    **attack(np.load(values_path(trial, self.out / "runs"))),
                }
            )
        reached = came.full
        return {
            "settings": list(came.settings),
            "at the edge of its grid": came.at_the_edge,
            "rounds": came.rounds,
            "steps": None if reached is None else reached.steps,
            "seeds that got there": None if reached is None else reached.seeds,
            "failed": came.failed,
            "runs": runs,
        }


class Attacker:
    """Membership, exposure and Jaccard of trained values; see the top of this file."""

    def __init__(self, worker: Worker, narratives: Narratives, size: Size) -> None:
        self._worker, self._canaries = worker, canaries(size.candidates, TIMES)
        tokenizer = worker.base.tokenizer
        count = len(narratives.reported)
        seen = [*narratives.trained[:count], *narratives.reported]
        self._member = torch.arange(len(seen)) < min(count, len(narratives.trained))
        texts = [*seen, *(text for canary in self._canaries for text in canary.records)]
        self._examples = [e for text in texts for e in encode_text(text, tokenizer, LENGTH, 1)]
        self._prompts = [
            example
            for canary in self._canaries
            for example in encode_completion(canary.prompt, f" {canary.secret}.", tokenizer, LENGTH)
        ]
        self._base = losses_of(worker, self._examples, worker.initial)

    def __call__(self, values: Vector) -> dict[str, float]:
        """What each of them finds out, of canaries by how often they were inserted."""
        fall = self._base - losses_of(self._worker, self._examples, values)
        narratives, rest = fall[: len(self._member)], fall[len(self._member) :]
        auc = area_under_curve(narratives, self._member.long())
        assert auc is not None
        self._worker.vector.write(values)
        told = completions(self._worker, self._prompts, self._worker.model)
        pairs = zip(self._canaries, told, strict=True)
        exposures = [exposure(part.numpy()) for part in rest.reshape(len(self._canaries), -1)]
        likeness = [jaccard(canary.secret, text) for canary, text in pairs]
        found = {"membership": auc}
        for times in OFTEN:
            of = [index for index, canary in enumerate(self._canaries) if canary.times == times]
            found[f"exposure {times}"] = statistics.fmean(exposures[i] for i in of)
            found[f"jaccard {times}"] = statistics.fmean(likeness[i] for i in of)
        return found


COLUMNS = {  # of the table: what of each run is in it
    "loss": "loss",
    "perplexity": "perplexity",
    "ε spent": "epsilon_spent",
    "committed": "epsilon_committed",
    "AUC": "membership",
    **{
        f"{short} ×{n}": f"{name} {n}"
        for name, short in ATTACKS.items()
        for n in sorted(set(TIMES))
    },
}


def table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    made = Table(title=title, caption="bits, Jaccard: of canaries that were inserted so many times")
    for name in ("row", "settings", *COLUMNS, "steps"):
        made.add_column(name, justify="left" if name in ("row", "settings") else "right")
    for row in rows:
        edge = "*" * bool(row["at the edge of its grid"])
        settings = ", ".join(text.partition(".")[2] for text in row["settings"]) + edge
        cells = [spread(row["runs"], key) for key in COLUMNS.values()]
        steps = "" if row["steps"] is None else f"{row['steps']:.0f} of {row['rounds']}"
        made.add_row(row["row"], "failed" if row["failed"] else settings, *cells, steps)
    return made


def spread(runs: Sequence[dict[str, Any]], key: str) -> str:
    """The mean over the seeds, and the sample deviation."""
    values = [run[key] for run in runs if run[key] is not None]
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("rldp"))
    parser.add_argument("--sites", type=int, default=1)
    parser.add_argument("--epsilon", type=float, choices=EPSILONS, help="this one alone")
    parser.add_argument("--rows", help=f"only some of {','.join(CONTROLLERS)}")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--quick", action="store_true", help="two small rounds of one seed, ε = 8")
    arguments = parser.parse_args()
    chosen = {"none", *(arguments.rows or ",".join(CONTROLLERS)).split(",")}
    if not chosen <= set(CONTROLLERS):
        parser.error(f"--rows: only {','.join(CONTROLLERS)}, not {arguments.rows}")
    private = {name: said for name, said in PRIVATE.items() if name in chosen}
    size = QUICK if arguments.quick else Size()
    folder: Path = arguments.out
    narratives = Narratives.read(arguments.data, size)
    write_federations(folder, narratives, arguments.sites, size)
    epsilons = [arguments.epsilon] if arguments.epsilon else EPSILONS[: 1 if arguments.quick else 3]
    parts = [Part(folder, None, size, without_privacy(size))]
    parts += [Part(folder, epsilon, size, private) for epsilon in epsilons]
    left = sum(sum(part.asked.left(part.out / "runs").values()) for part in parts)
    print(f"{left} of {sum(part.asked.runs for part in parts)} runs to do.", flush=True)
    for part in parts:
        if part.run(arguments.parallel):
            return 1
    config = parts[0].asked.config(parts[0].asked.variants[0], (), 1)
    return report(folder, parts, config, narratives, size)


def report(
    folder: Path, parts: Sequence[Part], config: JobConfig, narratives: Narratives, size: Size
) -> int:
    """Attack all, print a table for each part, and write rldp.json."""
    console, rows = Console(width=max(WIDTH, Console().width)), []
    with WorkerPool(1).borrow(job_recipe(config)) as worker:
        attack = Attacker(worker, narratives, size)
        for part in parts:
            found = part.measured(attack)
            console.print(table(part.title, found))
            rows += found
    path = folder / "rldp.json"
    path.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
