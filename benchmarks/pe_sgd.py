"""Compare PE-SGD on few private texts with every control that might explain its gain.

    python benchmarks/pe_sgd.py DATA --out pe-400 --private 400 --sites 1      # or 4

DATA holds PubMed abstracts as dev.jsonl and test.jsonl, plain or .gz, with a column text. Or it
holds the notes of MTSamples as mtsamples.jsonl, of which one half takes the place of each. The
first texts of dev are private. Of test, 600 are reported and 300 choose each method's settings.
There is the embedded model, with 10 steps of rate 0.2, ε = 1 at δ = 1e-5, N = 200, one in two kept.
The tenth of the reported texts that is worst for the base model is reported beside all. The set is
the trained model's own samples (--begin own), or 200 other abstracts of test (--begin real), which
a perfect generator could make. The same command goes on where it was stopped.

Rows, besides `base`, `lora` (no privacy) and `dp-lora`: `synthetic` trains on the set alone.
`warm_start` begins there, as line 2 of PE-SGD's Algorithm 1 does with two passes. `every=1000`
keeps the set unchanged. With C = 0.1 every gradient is cut to one length, as coefficients always
are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPORTED, TUNING, SIZE, ROUNDS = 600, 300, 200, 10
METHODS = (
    "base",
    "synthetic",
    "lora",
    "dp-lora",
    "dp-lora:privacy.clip_norm=0.1",
    "dp-lora:synthetic.warm_start=10",
    "dp-lora:privacy.clip_norm=0.1:synthetic.warm_start=10",
    "pe-sgd:synthetic.warm_start=2",
    "pe-sgd:synthetic.warm_start=2:synthetic.every=1000",
    "pe-sgd",
    "pe-sgd:synthetic.every=1000",
)
FEDERATION = """
[job]
name = "pubmed"
rounds = {rounds}
min_sites = {sites}
data_is_public = true

[model]
name = "embedded"
max_length = 128

[data]
columns = {{ text = "text" }}

[lora]
r = 4
alpha = 8
target_modules = "auto"

[privacy]
epsilon = {epsilon}
delta = 1e-5
sample_rate = 0.2
clip_norm = 1.0
max_records_per_unit = 1

[optimizer]
name = "adamw"
lr = 1e-2

[synthetic]
size = {size}
{begins}

[evaluation]
data = "reported.jsonl"
tuning = "tuning.jsonl"
every = 5
"""


Records = list[dict[str, str]]


def read(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as stream:
        yield from map(json.loads, stream)


def pools(data: Path) -> tuple[Records, Records]:
    """Read the texts that may be private, and others, each in a random order."""
    notes = next(data.glob("mtsamples.jsonl*"), None)
    if notes is None:
        names = (next(data.glob(f"{name}.jsonl*")) for name in ("dev", "test"))
        private, others = ([row["text"] for row in read(path)] for path in names)
    else:
        found = {row["transcription"]: "" for row in read(notes) if row["transcription"]}
        random.Random(0).shuffle(distinct := list(found))  # many are under several specialties
        private, others = distinct[: len(found) // 2], distinct[len(found) // 2 :]
    for part in (private, others):
        random.Random(0).shuffle(part)
    return [{"text": text} for text in private], [{"text": text} for text in others]


def write(path: Path, records: Records) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in records), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("pe"))
    parser.add_argument("--private", type=int, default=400, help="abstracts, of all sites together")
    parser.add_argument("--sites", type=int, default=1)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument(
        "--begin", choices=("own", "real"), default="own", help="what the set begins with"
    )
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--grid", action="append", help="instead of the usual rates")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tuning-seeds", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--quick", action="store_true", help="two small rounds of one seed")
    arguments = parser.parse_args()
    size, rounds, limits = SIZE, ROUNDS, (REPORTED, TUNING)
    if arguments.quick:
        arguments.seeds, arguments.grid, arguments.private = 1, ["lr=1e-2"], 40
        size, rounds, limits = 8, 2, (20, 10)

    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    private, others = pools(arguments.data)
    private = private[: arguments.private]
    write(folder / "reported.jsonl", others[: limits[0]])
    write(folder / "tuning.jsonl", others[limits[0] : sum(limits)])
    write(folder / "real.jsonl", others[sum(limits) : sum(limits) + size])
    begins = '[synthetic.generator]\nkind = "model"\n'
    if arguments.begin == "real":
        begins = f'data = "real.jsonl"\n{begins}'
    text = FEDERATION.format(
        rounds=rounds, sites=arguments.sites, epsilon=arguments.epsilon, size=size, begins=begins
    )
    for index in range(arguments.sites):
        share = private[index :: arguments.sites]
        write(folder / f"site-{index}.jsonl", share)
        text += f'\n[[sites]]\nname = "site-{index}"\ndata = "site-{index}.jsonl"\n'
        text += f"size = {len(share)}\nepsilon = {arguments.epsilon}\n"
    (folder / "federation.toml").write_text(text, encoding="utf-8")
    grids = [
        word for grid in arguments.grid or ["lr=1e-3,3e-3,1e-2,3e-2"] for word in ("--grid", grid)
    ]
    command = [
        *("fedpriv", "compare", str(folder / "federation.toml")),
        *("--methods", arguments.methods, "--seeds", str(arguments.seeds)),
        *("--tuning-seeds", str(arguments.tuning_seeds), "--parallel", str(arguments.parallel)),
        *grids,
        *(word for setting in arguments.settings for word in ("--set", setting)),
        *("--baseline", "dp-lora") * ("dp-lora" in arguments.methods.split(",")),
        *("--out", str(folder / "comparison")),
    ]
    print(" ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
