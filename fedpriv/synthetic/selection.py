"""Choose which records of a synthetic set stay as seeds: by the size of their coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Coefficients = np.ndarray[Any, np.dtype[np.floating[Any]]]


@dataclass(frozen=True)
class Selection:
    """The result of a draw.

    Attributes:
        seeds: the places of the kept records, ascending, none twice.
        entropy: entropy of the distribution that they were drawn from, divided by that of a uniform
            one. At 1, the coefficients had no say.
    """

    seeds: tuple[int, ...]
    entropy: float


def select(coefficients: Coefficients, count: int, *, temperature: float, seed: str) -> Selection:
    """Draw `count` of N records, with chances softmax(|z| / temperature), none twice.

    It takes the largest values of log-chance plus Gumbel noise. That is the same as drawing one
    after the other without putting back (Yellott 1977). The same record twice would be the same
    gradient twice.

    Args:
        coefficients: (N,) z, released.
        seed: the public seed of the draw.

    Raises:
        ValueError: Expected 1 ≤ count ≤ N.

    Source:
        The chances: Zou et al., "PE-SGD", ICLR 2026. Its code divides |z| by the size of the
        batch, which makes them uniform.
    """
    size = len(coefficients)
    if not 1 <= count <= size:
        raise ValueError(f"Expected 1 <= count={count} <= {size}.")
    scores = np.abs(np.nan_to_num(coefficients.astype(np.float64), posinf=0, neginf=0))
    scores = (scores - scores.max()) / temperature
    chances = np.exp(scores) / np.exp(scores).sum()
    nonzero = chances[chances > 0]
    entropy = float(-(nonzero * np.log(nonzero)).sum() / np.log(size)) if size > 1 else 0.0
    generator = np.random.default_rng(list(seed.encode()))
    drawn = np.argsort(scores + generator.gumbel(size=size))[-count:]
    return Selection(tuple(sorted(int(place) for place in drawn)), min(1.0, entropy))
