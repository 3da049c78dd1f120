"""Coefficients of a gradient in the span of others: what PE-SGD sends instead of the gradient.

With G (N, P) holding a gradient a row, a gradient h has inner products c = G h with them, and its
ridge regression on them is z = (G Gᵀ + λI)⁻¹ c: the step h becomes Gᵀ z. All of it needs G Gᵀ
(N, N) and c alone, so that G itself can be held and read a layer at a time
(`fedpriv.methods.pe_sgd.span`).

Source:
    Zou et al., "PE-SGD: Differentially Private Deep Learning via Evolution of Gradient Subspace
    for Text", ICLR 2026, whose code adds an absolute 1e-6 for λ; here it is relative to the mean
    of the diagonal, so that it means the same in every round and for every model.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Projection:
    """Ridge regression on N gradients, from their inner products alone.

    Args:
        gram: (N, N) G Gᵀ; symmetric, in float64.
        ridge: λ over the mean of the diagonal of `gram`, above 0.

    Formal guarantees:
        ===========================  =====================================================
        gram                         coefficients
        ===========================  =====================================================
        any rank, trace > 0          unique, by the ridge
        0                            0: nothing is spanned
        not finite                   0
        ===========================  =====================================================
    """

    def __init__(self, gram: Tensor, ridge: float) -> None:
        gram = gram.double()
        mean = gram.diagonal().mean()
        self._shrunk: Tensor | None = None
        if bool(torch.isfinite(gram).all()) and float(mean) > 0:
            # Scaled to a mean diagonal of 1: gradients of 1e-12 are no reason to overflow.
            self._scale = float(mean)
            values, self._vectors = torch.linalg.eigh(gram / mean)
            values = values.clamp_min(0) + ridge
            self._shrunk = self._vectors / values  # (N, N)

    def coefficients(self, products: Tensor) -> Tensor:
        """Compute z = (G Gᵀ + λI)⁻¹ c for every row c of `products` (…, N), in float64."""
        products = products.double()
        if self._shrunk is None:
            return torch.zeros_like(products)
        found: Tensor = (products / self._scale) @ self._vectors @ self._shrunk.T
        return found


def normalised(vectors: Tensor, norm: float) -> Tensor:
    """Scale every row (B, N) to length `norm`, in float64; a row of 0, or not finite, becomes 0.

    It is what clipping would leave of a long enough row. A coefficient's scale depends on the ridge
    and the model, so a fixed bound would clip all or nothing; its direction is what is asked.
    """
    vectors = vectors.double()
    largest = vectors.abs().amax(1, keepdim=True)  # first, so that no square over- or underflows
    usable = torch.isfinite(largest) & (largest > 0)
    vectors = torch.where(usable, vectors / largest, 0.0)
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors * (norm / lengths.clamp_min(1.0))
