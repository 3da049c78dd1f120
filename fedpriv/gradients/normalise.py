"""Give each adapter's part of a unit's vector the same length, in place of clipping the whole.

The part of an adapter with P_k of all P parameters gets the length C·√(P_k/P), whatever it had. So
the whole vector is at most C long, and only directions are left. The noise is σC in every value, as
always. A part that is more than `MOST` times too short stays shorter: it is multiplied by `MOST`.

Source:
    Bu, Wang, Zha and Karypis 2023, "Automatic Clipping: Differentially Private Deep Learning Made
    Easier and Stronger", for normalising; McMahan et al. 2018, "A General Approach to Adding
    Differential Privacy to Iterative Training Procedures", section 3, for a clip norm by group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

MOST = 1e3
_ADAPTER = re.compile(r"\.(?:lora_[AB]|modules_to_save)\.")


def adapters_of(
    names: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> dict[str, list[tuple[int, int]]]:
    """Return the columns of each adapter: A and B of a layer together, or a layer trained whole.

    Args:
        names, shapes: those of the trained parameters, as `TrainableVector` has them.

    Returns:
        the adapted layer's name → the first column and the one after the last, by parameter.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for name, shape in zip(names, shapes, strict=True):
        end = start + math.prod(shape)
        found.setdefault(_ADAPTER.split(name)[0], []).append((start, end))
        start = end
    return found


class Normalise:
    """Normalise the vectors of units, adapter by adapter.

    Args:
        names, shapes: those of the trained parameters, as `TrainableVector` has them.
        clip_norm: C, the plan's clip norm.

    Privacy:
        What it returns is private, and not yet clipped to C as a whole.
    """

    def __init__(
        self, names: Sequence[str], shapes: Sequence[tuple[int, ...]], clip_norm: float
    ) -> None:
        self._clip_norm, self._adapters = clip_norm, [*adapters_of(names, shapes).values()]

    def __call__(self, means: Tensor) -> Tensor:
        """Return the normalised vectors, (U, P). A row that is not finite stays so.

        Args:
            means: (U, P), each unit's own.
        """
        made = torch.empty_like(means)
        for columns in self._adapters:
            parts = [means[:, start:end] for start, end in columns]
            norms = torch.stack([part.double().square().sum(1) for part in parts]).sum(0).sqrt()
            share = sum(end - start for start, end in columns) / means.shape[1]
            factors = (self._clip_norm * math.sqrt(share) / norms).clamp(max=MOST)
            for (start, end), part in zip(columns, parts, strict=True):
                torch.mul(part, factors.to(means.dtype).unsqueeze(1), out=made[:, start:end])
        return made
