"""Tell what denoising and PE-SGD can do, from shapes and noise, before anything runs.

With B units expected in a step and noise of σ clip norms on their sum, both decide by B/σ. Let the
clipped gradients agree by ρ (the length of their sum over B·C), a matrix of m × n values hold the
share e of the sum's square, and its first singular value the share f of that. Then that singular
value is above the edge of pure noise where

    B/σ > (mn)^¼ / (ρ √(e f)).

Were all L matrices alike, that would be a cosine of the noisy gradient to the true one of (mn)^−¼
(at f = 1). And as all but one singular value of pure noise is taken away, no cosine grows by more
than √(mn / (m + n)).

PE-SGD's coefficients are sums of unit vectors of N values with noise σ in each: their length is
about ρB, that of the noise σ√N, so a set of more than (ρB/σ)² texts is lost in noise.

Source:
    Benaych-Georges & Nadakuditi 2012 for the edge; ρ, e and f were measured once, see `NEEDED`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# SmolLM2-135M, rank 8 in queries and values, 400 abstracts of 64 tokens, first step: ρ, and what
# B/σ has to be over (mn)^¼ √L before a tenth, half and nine tenths of the matrices are seen.
AGREEMENT = 0.25
NEEDED = {0.1: 1.72, 0.5: 8.95, 0.9: 44.3}
Shape = tuple[int, int]


@dataclass(frozen=True)
class MatrixReach:
    """The effect that denoising can have on the matrices of one shape.

    Attributes:
        rows, columns: m and n, of `count` matrices.
        cosine: that of noisy to true gradient above which a matrix of rank one is seen.
        gain: the largest factor by which a cosine can grow.
    """

    rows: int
    columns: int
    count: int
    cosine: float
    gain: float


@dataclass(frozen=True)
class Reach:
    """The effect that methods can have at a noise.

    Attributes:
        signal_to_noise: B/σ of all sites together.
        matrices: the reach for each shape, the most values first.
        needed: share of the matrices → the B/σ from which that share is seen, by `NEEDED`.
        texts: N, the size of a synthetic set; a larger one is lost in noise.
    """

    signal_to_noise: float
    matrices: tuple[MatrixReach, ...]
    needed: dict[float, float]
    texts: int


def reach(signal_to_noise: float, shapes: Mapping[Shape, int]) -> Reach:
    """Estimate what denoising and PE-SGD can do.

    Args:
        shapes: how many matrices of each shape are trained, at least one.
    """
    matrices = tuple(
        MatrixReach(m, n, count, (m * n) ** -0.25, math.sqrt(m * n / (m + n)))
        for (m, n), count in sorted(shapes.items(), key=lambda item: -math.prod(item[0]))
    )
    total = sum(shapes.values())
    typical = sum(count * (m * n) ** 0.25 for (m, n), count in shapes.items()) / math.sqrt(total)
    needed = {share: times * typical for share, times in NEEDED.items()}
    texts = max(1, int((AGREEMENT * signal_to_noise) ** 2))
    return Reach(signal_to_noise, matrices, needed, texts)


def signal_to_noise(units: float, noise_multiplier: float, sites: int, shares: int) -> float:
    """Return B/σ of the sum of all sites.

    Args:
        units: B, expected in a step of all sites together.
        noise_multiplier: σ of a site's claim.
        shares: k of a secure sum, each site's noise being σ/√k; 1 where each adds all of it.
    """
    return units / (noise_multiplier * math.sqrt(sites / shares))
