"""Small records of a site, in parts."""

from __future__ import annotations

import random

from fedpriv.data.encode import Example
from fedpriv.personal.records import OwnParts


def examples(count: int, seed: int) -> list[Example]:
    drawn = random.Random(seed)
    made = []
    for _ in range(count):
        ids = [3 + (i * i) % 7 for i in range(drawn.randint(6, 20))]
        made.append(Example(ids, ids))
    return made


def in_parts(sizes: tuple[int, ...], left_out: int) -> OwnParts:
    return OwnParts(tuple(examples(size, seed) for seed, size in enumerate(sizes)), left_out)
