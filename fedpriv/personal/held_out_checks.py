"""Refuse held-out records that can't judge a model: trained on, or from another data set.

Both faults are found in the texts alone, before anything is trained. If a site names the wrong file
of further records, every figure of a table is about something else.
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

COPIES = 0.1  # largest excess of the share of held-out copies over the share of repeats in training
FEWEST, MOST = 4, 200  # records of a side: fewer tell nothing, of more a sample is compared
# What records of both sides have in common, divided by what records of one side have in common.
# With 16 records against 8, records of one clinic had 0.93 or more at 26 clinics of the embedded
# example and 5 other data sets. Texts of another kind had 0.46 (median), another language 0.42 at
# most.
LIKE = 0.75
SURELY, TRIES = 4.0, 200  # deviations beyond what random halves differ by; number of such halves
Array = NDArray[np.float64]


def check_held_out(
    training: Sequence[Example],
    held_out: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    *,
    key: str,
) -> None:
    """Check that held-out records are of the same kind as the training records, and not among them.

    Args:
        training, held_out: examples, whose texts `tokenizer` reads.
        key: the setting that names the held-out records.

    Raises:
        DataError: the held-out records can't judge a model.

    Privacy:
        As confidential as the records: for the site alone, unless the records are public.
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
    """Check that held-out texts are no copies of training texts, unless these repeat as much.

    Args:
        training, held_out: texts, or digests of them.
        key: the setting that names the held-out records.

    Raises:
        DataError: too many are copies.
    """
    known = Counter(training)
    usual = sum(count for count in known.values() if count > 1) / max(1, known.total())
    copies = sum(text in known for text in held_out)
    if copies / max(1, len(held_out)) - usual > COPIES:
        problem = f"{copies} of {len(held_out)} held-out records are copies of records that train,"
        fix = "Take them out of one of the two"
        fix += ", or hold out by a column that copies share." if "held_out" in key else "."
        raise DataError(
            f"{problem} so they say nothing about how good a model is", key=key, fix=fix
        )


def _sample(examples: Sequence[Example]) -> list[set[int]]:
    """Return the sets of tokens of some of the records."""
    drawn = random.Random(0).sample(examples, min(MOST, len(examples)))
    return [found for example in drawn if (found := set(example.input_ids))]


def likeness(one: Sequence[set[int]], other: Sequence[set[int]]) -> tuple[float, float]:
    """Measure how alike two sides of records are, and how surely less than records within a side.

    What two records have in common is the cosine of their tokens. The mean across sides is divided
    by the mean within them. The second figure says how sure that is: by how many deviations the
    difference (the maximum mean discrepancy of Gretton et al., 2012) is above its mean where
    records are dealt at random.

    Args:
        one, other: the tokens of each record, for at least two records a side.
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
    """Return what two records have in common: within `count` and within the others, and across."""
    parts = common[:count, :count], common[count:, count:]
    within = [(part.sum() - np.trace(part)) / (len(part) * (len(part) - 1)) for part in parts]
    return float(np.mean(within)), float(common[:count, count:].mean())
