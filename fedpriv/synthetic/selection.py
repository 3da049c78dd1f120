"""Choose which records of a synthetic set stay as seeds: by the size of their coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np

Coefficients = np.ndarray[Any, np.dtype[np.floating[Any]]]


def select(coefficients: Coefficients, count: int, *, seed: str) -> tuple[int, ...]:
    """Draw the places of `count` of N records, with chances softmax |z|, ascending, none twice.

    It takes the largest values of log-chance plus Gumbel noise. That is the same as drawing one
    after the other without putting back (Yellott 1977). The same record twice would be the same
    gradient twice.

    Args:
        coefficients: (N,) z, released.
        seed: the public seed of the draw.

    Source:
        The chances: Zou et al., "PE-SGD", ICLR 2026. Its code divides |z| by the size of the
        batch, which makes them uniform.
    """
    size = len(coefficients)
    scores = np.abs(np.nan_to_num(coefficients.astype(np.float64), posinf=0, neginf=0))
    generator = np.random.default_rng(list(seed.encode()))
    drawn = np.argsort(scores + generator.gumbel(size=size))[-count:]
    return tuple(sorted(int(place) for place in drawn))
