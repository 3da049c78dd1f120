"""Refuse held-out records by which no model can be judged: trained on, or of another data set.

Both are told from the texts alone, before anything is trained. A site's own file of further records
may be the wrong one, and then every figure of a table is of something else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.encode import Example
from fedpriv.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COPIES = 0.1  # more of the held-out records than of those that train have a copy among the latter
FEWEST, MOST = 4, 200  # records of a side: of fewer nothing is told, of more a sample is compared
# Of what records of one side have in common, how much they have in common with the other side. With
# 16 records against 8, those of one clinic had 0.93 or more at 26 clinics of the embedded example
# and 5 other data sets, texts of another kind 0.46 (median), another language 0.42 at most.
LIKE = 0.75
SURELY, TRIES = 4.0, 200  # deviations from what random halves differ by; as many halves
Array = NDArray[np.float64]


def check_held_out(
    training: Sequence[Example],
    held_out: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    *,
    key: str,
) -> None:
    """Check that held-out records are of the kind of those that train, and none of these.

    Args:
        training, held_out: examples, of which `tokenizer` reads the texts.
        key: the setting that names the held-out records.

    Raises:
        DataError: they are none to judge a model by.

    Privacy:
        As confidential as the records: for the site alone, or of public ones.
    """
    reader: Any = tokenizer

    def read(example: Example) -> str:
        return " ".join(reader.decode(example.input_ids).split()).casefold()

    check_copies(map(read, training), [*map(read, held_out)], key=key)
    sides = [_sample(side) for side in (training, held_out)]
    if min(map(len, sides)) < FEWEST:
        return
    alike, sure = likeness(*sides)
    if alike < LIKE and sure > SURELY:
        problem = f"the held-out records read as another data set's: they have {alike:.2f} as much"
        problem += " in common with records that train as each side has in itself"
        fix = "Name records of the same kind and language as those that train."
        raise DataError(problem, key=key, fix=fix)


def check_copies(training: Iterable[str], held_out: Sequence[str], *, key: str) -> None:
    """Check that held-out texts are no copies of those that train, unless these repeat as much.

    Args:
        training, held_out: texts, or digests of them.
        key: the setting that names the held-out records.

    Raises:
        DataError: they are.
    """
    known = Counter(training)
    usual = sum(count for count in known.values() if count > 1) / max(1, known.total())
    copies = sum(text in known for text in held_out)
    if copies / max(1, len(held_out)) - usual > COPIES:
        problem = f"{copies} of {len(held_out)} held-out records are copies of records that train,"
        fix = "Take them out of one of the two"
        fix += ", or hold out by a column that copies share." if "held_out" in key else "."
        raise DataError(f"{problem} so they say nothing of how good a model is", key=key, fix=fix)


def _sample(examples: Sequence[Example]) -> list[set[int]]:
    """Return the tokens that some of the records have."""
    drawn = random.Random(0).sample(examples, min(MOST, len(examples)))
    return [found for example in drawn if (found := set(example.input_ids))]


def likeness(one: Sequence[set[int]], other: Sequence[set[int]]) -> tuple[float, float]:
    """Measure what records have in common across two sides, and how surely it is less than within.

    What is in common is the cosine of the tokens that two records have. Across sides it is divided
    by its mean within them. How surely: by how many deviations the difference (the maximum mean
    discrepancy of Gretton et al., 2012) is above what it is where records are dealt at random.

    Args:
        one, other: the tokens of each record, at least two records.
    """
    records = [*one, *other]
    place = {token: i for i, token in enumerate(sorted(set().union(*records)))}
    rows = np.zeros((len(records), len(place)))
    for index, tokens in enumerate(records):
        rows[index, [place[token] for token in tokens]] = len(tokens) ** -0.5
    common: Array = rows @ rows.T
    within, across = _means(common, len(one))
    drawn = np.random.default_rng(0)
    dealt = []
    for _ in range(TRIES):
        mixed = drawn.permutation(len(records))
        inside, between = _means(common[np.ix_(mixed, mixed)], len(one))
        dealt.append(inside - between)
    spread = float(np.std(dealt))
    sure = (within - across - float(np.mean(dealt))) / spread if spread else 0.0
    return across / within if within else 1.0, sure


def _means(common: Array, count: int) -> tuple[float, float]:
    """Return what two records have in common: within `count` and the others, and across."""
    parts = common[:count, :count], common[count:, count:]
    within = [(part.sum() - np.trace(part)) / (len(part) * (len(part) - 1)) for part in parts]
    return float(np.mean(within)), float(common[:count, count:].mean())
