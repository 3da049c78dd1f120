"""Compute how large the largest singular value of pure noise is."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal

DRAWS = 10_000
QUANTILE = 0.99


def noise_edge(rows: int, columns: int) -> float:
    """Return √m + √n, where the singular values of a large m × n matrix of unit noise end.

    Source:
        Marchenko & Pastur 1967; Benaych-Georges & Nadakuditi, "The singular values and vectors
        of low rank perturbations of large rectangular random matrices", 2012.
    """
    return math.sqrt(rows) + math.sqrt(columns)


def edge_margin(rows: int, columns: int) -> float:
    """Return the κ that noise's largest singular value, over `noise_edge`, exceeds once in 100.

    Returns:
        At least 1.
    """
    return max(1.0, float(np.quantile(_largest(rows, columns), QUANTILE)))


def chance_above(rows: int, columns: int, kappa: float) -> float:
    """Return how likely the largest singular value of noise is above κ times `noise_edge`."""
    return float(np.mean(_largest(rows, columns) > kappa))


@lru_cache(maxsize=256)
def _largest(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Draw 10,000 times the largest singular value of unit noise, over `noise_edge`.

    The seed is fixed, and the time does not depend on the longer side: the singular values of an m
    × n Gaussian matrix are distributed as those of an m × m bidiagonal one with χ-distributed
    entries.

    Privacy:
        Depends on the shape alone.

    Source:
        Dumitriu & Edelman, "Matrix models for beta ensembles", 2002, with β = 1.
    """
    short, long = sorted((rows, columns))
    generator = np.random.default_rng([short, long])
    count = np.arange(short)
    diagonal = np.sqrt(generator.chisquare(long - count, (DRAWS, short)))
    below = np.sqrt(generator.chisquare(short - count[1:], (DRAWS, short - 1)))
    # B Bᵀ is tridiagonal; its largest eigenvalue is the square that is looked for.
    main, side = np.square(diagonal), diagonal[:, :-1] * below
    main[:, 1:] += np.square(below)
    last = (short - 1, short - 1)
    squares = [
        float(eigh_tridiagonal(d, e, eigvals_only=True, select="i", select_range=last)[0])
        for d, e in zip(main, side, strict=True)
    ]
    return np.sqrt(squares) / noise_edge(rows, columns)
