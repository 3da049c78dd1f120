"""RLDP's experiment: what are normalised gradients worth over 2,000 steps, and what leaks?

    python benchmarks/rldp.py DATA --plan
    python benchmarks/rldp.py DATA --out rldp --epsilon 2
    python benchmarks/rldp.py DATA --out rldp-quick --quick     # does everything run?

DATA holds narratives.jsonl.gz: a text for each hospital stay of the Diabetes 130-US hospitals data
(columns text and patient_nbr). The embedded model learns to continue 20,000 of them, one for each
patient, by their first 64 tokens. It has LoRA of rank 4 in queries and values (K = 8 pairs), and
2,000 steps of 32, at ε = 2 and 0.5 (δ = 1e-5). The script says its hours first, and goes on where
it was stopped.

Rows, in the order in which `--rows` may cut them, begin with `fixed-C` at four clip norms. `unpaid`
is fixed at C = 0.1 with noise of σ/√K, but no less than a site allows. The published code adds this
noise to K groups that are each clipped by themselves. The row is at the ε that this really costs.
Then come `normalise`; `lora` without privacy, which the attacks have to catch; and `base`. `fedpriv
compare` chooses each row's learning rate, on one half of the tuning narratives and a seed that is
not reported. Earlier versions also had adaptive clip norms (`quantile`), and the paper's soft
actor-critic. Its `sac` decided every 16 steps about clip norms and weights, rewarded by 64
narratives of the coordinator's own.

Attacks on each trained adapter:
    membership  area under the ROC curve, by how far the loss fell from the base model's, of
                narratives that were trained on against as many that were not; 0.5 is chance.
    exposure    log2(64 / rank) of a canary among 63 others of its form (Carlini et al. 2019);
                6 bits is a canary that is found at once, 1.4 bits is chance.
    Jaccard     as published: 4,000 texts of at most ten tokens after "secret_id=", at temperature
                0.7; of each, the runs of one to four letters that the nearest canary has, too.

Source:
    Khadangi et al., "Efficient Differentially Private Fine-Tuning of LLMs via Reinforcement
    Learning", arXiv 2507.22565: canaries are ten characters of [A-Z0-9], appended to records as
    "secret_id=…". Here there are eight, of which four are inserted once and four 8 times, for
    which a claim for one record says less.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import statistics
import string
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
from fedpriv.data.encode import encode_text
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.plain_training.scores import area_under_curve, losses_of
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv.synthetic.language_model import sample
from fedpriv_audit.exposure import exposure
from fedpriv_client.limits import Limits
from fedpriv_comparison.comparison import Comparison, Row, compare
from fedpriv_comparison.figures import Figures, figures
from fedpriv_comparison.runner import Runner, open_folder
from fedpriv_comparison.trial import values_path
from fedpriv_comparison.variants import parse_variants

EPSILONS = (2.0, 0.5)
TIMES = (1, 1, 1, 1, 8, 8, 8, 8)  # how often each canary is inserted
OFTEN = sorted(set(TIMES))
LENGTH = 64  # tokens
BATCH, PAIRS, DELTA = 32, 8, 1e-5
LEAST = Limits.min_noise  # of a site, relative to C
SECONDS = 0.0095  # of a processor, for a record of a step, without AMX
SECRET, BEFORE = string.ascii_uppercase + string.digits, "secret_id="
WORDS, WRITTEN, NEW_TOKENS, TEMPERATURE = 15, 4000, 10, 0.7
WIDTH = 170  # letters of a table, at least
ROWS = {  # names by which `fedpriv compare` calls them
    "fixed-0.1": "dp-lora:privacy.clip_norm=0.1",
    "fixed-0.03": "dp-lora:privacy.clip_norm=0.03",
    "fixed-0.3": "dp-lora:privacy.clip_norm=0.3",
    "fixed-1": "dp-lora:privacy.clip_norm=1.0",
    "unpaid": "dp-lora:privacy.clip_norm=0.1:privacy.epsilon={unpaid:.4g}",
    "normalise": "dp-lora:privacy.normalise=adapters",
}
WITHOUT = {"lora": "lora", "base": "base"}
ALL = {**ROWS, **WITHOUT}
FEDERATION = """
[job]
name = "rldp"
rounds = {rounds}
min_sites = 1
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
delta = {delta}
sample_rate = {rate}
clip_norm = 1.0
max_records_per_unit = 1

[optimizer]
name = "adamw"
lr = 1e-2

[evaluation]
data = "reported.jsonl"
tuning = "tuning.jsonl"
every = {every}

[compute]
microbatch = 32
dtype = "mixed"
"""
Records = list[str]


@dataclass(frozen=True)
class Size:
    """Hold the sizes. The defaults are those of the experiment."""

    trained: int = 20_000
    reported: int = 600
    tuning: int = 300
    rounds: int = 2000
    every: int = 200
    seeds: int = 3
    candidates: int = 64  # of a canary, its own secret among them
    written: int = WRITTEN
    grid: str = "lr=3e-4,1e-3,3e-3,1e-2"

    @property
    def rate(self) -> float:
        """Return the chance of a record to be in a step."""
        return BATCH / self.trained


QUICK = Size(320, 24, 16, 2, 1, 1, 8, 20, "lr=1e-2")


@dataclass(frozen=True)
class Canary:
    """A narrative's beginning with a secret, and secrets that are never inserted.

    Its own is the first. The beginning is short, so that the secret is within the first tokens.
    Only these are read.
    """

    narrative: str
    secrets: Sequence[str]
    times: int

    @property
    def records(self) -> Records:
        """Return the record that is inserted, and then the others."""
        begun = " ".join(self.narrative.split()[:WORDS])
        return [f"{begun} {BEFORE}{secret}" for secret in self.secrets]


def canaries(narratives: Records, candidates: int) -> list[Canary]:
    """Make the same canaries for the same narratives. A secret has ten characters, as published."""
    draw = random.Random("canaries")
    return [
        Canary(text, ["".join(draw.choices(SECRET, k=10)) for _ in range(candidates)], times)
        for text, times in zip(narratives, TIMES, strict=False)
    ]


def unpaid(epsilon: float, size: Size) -> float:
    """Return the true ε of noise σ/√K, where σ is the noise for `epsilon`."""
    noise = calibrate_noise(epsilon, DELTA, size.rate, size.rounds) / math.sqrt(PAIRS)
    return epsilon_upper([Event(size.rate, max(noise, LEAST), size.rounds)], DELTA)


@dataclass(frozen=True)
class Narratives:
    """Hold narratives of different patients, in a random order."""

    trained: Records
    reported: Records
    tuning: Records

    @classmethod
    def read(cls, data: Path, size: Size) -> Narratives:
        """Read the first narrative of each patient from a folder's narratives.jsonl.gz."""
        stays: dict[int, str] = {}
        with gzip.open(data / "narratives.jsonl.gz", "rt", encoding="utf-8") as stream:
            for row in map(json.loads, stream):
                stays.setdefault(row["patient_nbr"], row["text"])
        texts = iter(random.Random(0).sample(list(stays.values()), len(stays)))
        counts = (size.trained, size.reported, size.tuning)
        return cls(*([next(texts) for _ in range(count)] for count in counts))


def write(path: Path, texts: Records) -> None:
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    path.write_text("".join(lines), encoding="utf-8")


def write_federation(folder: Path, narratives: Narratives, epsilon: float, size: Size) -> Path:
    """Write the records of the site, with canaries among them, and the federation file for an ε."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("reported", "tuning"):
        write(folder / f"{name}.jsonl", getattr(narratives, name))
    planted = canaries(narratives.trained, size.candidates)
    inserted = [canary.records[0] for canary in planted for _ in range(canary.times)]
    records = [*narratives.trained, *inserted]
    random.Random(1).shuffle(records)
    write(folder / "site.jsonl", records)
    text = FEDERATION.format(
        rounds=size.rounds,
        rate=size.rate,
        delta=DELTA,
        length=LENGTH,
        epsilon=epsilon,
        every=size.every,
    )
    text += '\n[[sites]]\nname = "site"\ndata = "site.jsonl"\nheld_out = "tuning.jsonl"\n'
    text += f"size = {len(records)}\n"
    file = folder / f"federation-{epsilon:g}.toml"
    file.write_text(text, encoding="utf-8")
    return file


class Part:
    """Run one comparison: without privacy, or at one ε.

    Attributes:
        names: names of its rows, and how `fedpriv compare` calls them.
    """

    def __init__(self, file: Path, epsilon: float | None, size: Size, names: dict[str, str]):
        self.title = "without privacy" if epsilon is None else f"ε = {epsilon:g}"
        self.names, self.file, self.grid = names, file, size.grid
        part = "open" if epsilon is None else f"{epsilon:g}"
        self.out = file.parent / f"comparison-{part}"
        self.baseline = next(iter(names.values()))
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
        """Measure each row, with attacks on every run that is reported."""
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
    """Measure membership, exposure and Jaccard of trained values, see the top of this file."""

    def __init__(self, worker: Worker, narratives: Narratives, size: Size) -> None:
        self._worker, self._canaries = worker, canaries(narratives.trained, size.candidates)
        self._written, tokenizer = size.written, worker.base.tokenizer
        count = min(len(narratives.reported), len(narratives.trained) - len(TIMES))
        members = narratives.trained[len(TIMES) :][:count]
        seen = [*members, *narratives.reported[:count]]
        self._member = torch.arange(len(seen)) < count
        texts = [*seen, *(text for canary in self._canaries for text in canary.records)]
        self._examples = [e for text in texts for e in encode_text(text, tokenizer, LENGTH, 1)]
        self._start = list(tokenizer(BEFORE, add_special_tokens=False)["input_ids"])
        self._base = losses_of(worker, self._examples, worker.initial)

    def __call__(self, values: Vector) -> dict[str, float]:
        """Return what each attack finds out.

        For canaries, it is by how often they were inserted.
        """
        worker = self._worker
        fall = self._base - losses_of(worker, self._examples, values)
        narratives, rest = fall[: len(self._member)], fall[len(self._member) :]
        auc = area_under_curve(narratives, self._member.long())
        assert auc is not None
        worker.vector.write(values)
        made = sample(
            worker.model,
            worker.base.tokenizer,
            [self._start] * self._written,
            [NEW_TOKENS] * self._written,
            temperature=TEMPERATURE,
            seed="rldp",
        )
        told = [str(worker.base.tokenizer.decode(row)).strip()[:10] for row in made]
        secrets = [canary.secrets[0] for canary in self._canaries]
        nearest = [max(likeness(secret, text) for secret in secrets) for text in told]
        exposures = [exposure(part.numpy()) for part in rest.reshape(len(self._canaries), -1)]
        found = {"membership": auc, "jaccard": statistics.fmean(nearest)}
        for times in OFTEN:
            of = [index for index, canary in enumerate(self._canaries) if canary.times == times]
            found[f"exposure {times}"] = statistics.fmean(exposures[i] for i in of)
        return found


def likeness(secret: str, text: str) -> float:
    """Return the mean over n = 1 to 4 of the Jaccard index of runs of n letters."""
    return statistics.fmean(_jaccard(secret, text, count) for count in range(1, 5))


def _jaccard(secret: str, told: str, count: int) -> float:
    """Return the Jaccard index of letter runs in a secret and in `told`, cut to its length."""
    one, other = (
        {text[start : start + count] for start in range(len(text) - count + 1)}
        for text in (secret, told.strip()[: len(secret)])
    )
    return len(one & other) / len(one | other)


COLUMNS = {  # column of the table → figure of a run
    "loss": "loss",
    "perplexity": "perplexity",
    "ε spent": "epsilon_spent",
    "AUC": "membership",
    **{f"bits ×{n}": f"exposure {n}" for n in OFTEN},
    "Jaccard": "jaccard",
}


def table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    made = Table(title=title, caption="bits: exposure of canaries that were inserted so many times")
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
    """Write the mean over the seeds, and the sample deviation."""
    values = [run[key] for run in runs if run[key] is not None]
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("rldp"))
    parser.add_argument("--epsilon", type=float, choices=EPSILONS, help="this one alone")
    parser.add_argument("--rows", help=f"only some of {','.join(ALL)}")
    parser.add_argument("--grid", default=Size.grid, help="rates that each row tries")
    parser.add_argument("--seeds", type=int, default=Size.seeds, help="that are reported")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--plan", action="store_true", help="say what it takes, and nothing else")
    parser.add_argument("--quick", action="store_true", help="two small rounds of one seed")
    arguments = parser.parse_args()
    chosen = list(ALL) if arguments.rows is None else arguments.rows.split(",")
    if not {*chosen} <= {*ALL}:
        parser.error(f"--rows: only {','.join(ALL)}, not {arguments.rows}")
    size = QUICK if arguments.quick else Size(grid=arguments.grid, seeds=arguments.seeds)
    epsilons = [arguments.epsilon] if arguments.epsilon else EPSILONS[: 1 if arguments.quick else 2]
    narratives = Narratives.read(arguments.data, size)
    parts = []
    for epsilon in epsilons:
        file = write_federation(arguments.out, narratives, epsilon, size)
        real = unpaid(epsilon, size)
        names = {name: ROWS[name].format(unpaid=real) for name in chosen if name in ROWS}
        if names:
            parts.append(Part(file, epsilon, size, names))
    names = {name: WITHOUT[name] for name in chosen if name in WITHOUT}
    if names:
        parts.append(Part(file, None, size, names))
    left = sum(part.asked.left(part.out / "runs") for part in parts)
    hours = left * size.rounds * BATCH * SECONDS / 3600
    print(f"{left} of {sum(part.asked.runs for part in parts)} runs to do: {hours:.1f} hours of a")
    print("processor.", flush=True)
    if arguments.plan:
        return 0
    for part in parts:
        if part.run(arguments.parallel):
            return 1
    config = parts[-1].asked.config(parts[-1].asked.variants[0], (), 1)
    return report(arguments.out, parts, config, narratives, size)


def report(
    folder: Path, parts: Sequence[Part], config: JobConfig, narratives: Narratives, size: Size
) -> int:
    """Attack all runs, print a table for each part, and write rldp.json."""
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
