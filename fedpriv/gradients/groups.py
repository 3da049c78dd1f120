"""Divide trained parameters into groups, each with its own clip norm and share of the noise.

A decision gives each of K groups a clip norm C_k and a weight w_k, Σw_k = 1. A unit's vector is
scaled in each group by a_k = C·√((1−f)·w_k) / C_k and clipped there to C·√((1−f)·w_k), so that the
whole vector is at most C long, including K further values with a share f of the squared norm. What
is released then gets noise σC in every value, as always. Divided by a_k, it has noise of
σC_k / √((1−f)·w_k) in group k. So the decision says how noise is divided among groups, and nothing
that it says can change what a release costs: the sum is clipped to C once more where it is made.

The further values say for each group whether a unit was within its clip norm: (b_k − ½)·β with
β = 2C·√(f/K), b_k being 1 or 0.

Source:
    McMahan et al. 2018, "A General Approach to Adding Differential Privacy to Iterative Training
    Procedures", section 3 (joint clipping of groups by weights); Andrew et al. 2021,
    "Differentially Private Learning with Adaptive Clipping", algorithm 1 (b − ½).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.config.groups import Decision, Grouping, GroupTerms
from fedpriv.errors import ProtocolError
from fedpriv.models.vector import Vector

Values = np.ndarray[Any, np.dtype[np.float64]]
_LAYER = re.compile(r"^(.*?\.\d+)\.")
_ADAPTER = re.compile(r"\.(?:lora_[AB]|modules_to_save)\.")


@dataclass(frozen=True)
class Groups:
    """The parts of the trained vector, by group.

    Attributes:
        names: the groups' names, in the order of their first parameters.
        segments: of each part the first column, the column after the last, and the group's number,
            in order.
    """

    names: tuple[str, ...]
    segments: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, names: Sequence[str], shapes: Sequence[tuple[int, ...]], by: Grouping) -> Groups:
        """Make the groups of a trained vector.

        Args:
            names, shapes: those of its parameters, as `TrainableVector` has them.
            by: ``model`` is one group; ``layers`` one for each layer of the model, a head being
                one; ``adapters`` A and B of a layer jointly, or what is trained whole; ``matrices``
                every parameter by itself.
        """
        numbers: dict[str, int] = {}
        segments: list[tuple[int, int, int]] = []
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            group = numbers.setdefault(_group_of(name, by), len(numbers))
            end = start + math.prod(shape)
            if segments and segments[-1][2] == group:
                segments[-1] = (segments[-1][0], end, group)
            else:
                segments.append((start, end, group))
            start = end
        return cls(tuple(numbers), tuple(segments))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def size(self) -> int:
        """P, the number of parameters."""
        return self.segments[-1][1] if self.segments else 0

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of parameters in each group, (K,)."""
        found = [0] * len(self)
        for start, end, group in self.segments:
            found[group] += end - start
        return tuple(found)


def _group_of(name: str, by: Grouping) -> str:
    match by:
        case "model":
            return "model"
        case "layers":
            found = _LAYER.match(name)
            return found[1] if found else _ADAPTER.split(name)[0]
        case "adapters":
            return _ADAPTER.split(name)[0]
        case "matrices":
            return name


class GroupScaling:
    """Scale and clip vectors in groups at a site, and scale them back at the server.

    Args:
        clip_norm: C, the plan's clip norm.

    Attributes:
        extra: the number of values in a release besides the P: K or none.

    Raises:
        ProtocolError: the decision has another number of groups.

    Privacy:
        Public. What `vectors` gives is private, and not yet clipped to C as a whole.
    """

    def __init__(
        self, groups: Groups, terms: GroupTerms, decision: Decision, clip_norm: float
    ) -> None:
        count = len(groups)
        if (terms.count, len(decision.clip_norms)) != (count, count):
            raise ProtocolError(
                f"groups: expected {count} of this model, the job has {terms.count} and its request"
                f" {len(decision.clip_norms)}."
            )
        self._groups = groups
        weights, norms = np.array(decision.weights), np.array(decision.clip_norms)
        self._norms = norms
        self._bounds = clip_norm * math.sqrt(1 - terms.bits) * np.sqrt(weights)
        self.scales: Values = self._bounds / norms  # a_k
        self.extra = terms.extra
        self._bit = 2 * clip_norm * math.sqrt(terms.bits / count)  # β

    def vectors(self, means: Tensor) -> Tensor:
        """Scale and clip vectors of units, and say which of their groups were within the clip norm.

        Args:
            means: (U, P), each unit's own.

        Returns:
            (U, P + extra) of the same type. A row that is not finite stays so.
        """
        norms = self._norms_of(means)
        scales, bounds, own = (
            torch.from_numpy(values).to(means.device)
            for values in (self.scales, self._bounds, self._norms)
        )
        factors = torch.minimum(scales.expand_as(norms), bounds / norms).to(means.dtype)
        made = means.new_empty(len(means), self._groups.size + self.extra)
        for start, end, group in self._groups.segments:
            factor = factors[:, group : group + 1]
            torch.mul(means[:, start:end], factor, out=made[:, start:end])
        if self.extra:
            made[:, self._groups.size :] = ((norms <= own).to(means.dtype) - 0.5) * self._bit
        return made

    def _norms_of(self, rows: Tensor) -> Tensor:
        """Return the norm of each group of each row, (U, K) float64."""
        found: dict[int, Tensor] = {}
        for start, end, group in self._groups.segments:
            norm = torch.linalg.vector_norm(rows[:, start:end], dim=1, dtype=torch.float64)
            found[group] = torch.hypot(found[group], norm) if group in found else norm
        return torch.stack([found[group] for group in sorted(found)], dim=1)

    def gradient(self, released: Vector) -> Vector:
        """Scale a mean of what was released back, (P,)."""
        made = np.empty(self._groups.size, dtype=np.float32)
        for start, end, group in self._groups.segments:
            made[start:end] = released[start:end] / self.scales[group]
        return made

    def within(self, released: Vector) -> Values:
        """Return the share of units within the clip norm of each group, with its noise, (K,).

        Raises:
            ValueError: the release does not say it.
        """
        if not self.extra:
            raise ValueError("Expected a release that says which groups were within.")
        return released[self._groups.size :].astype(np.float64) / self._bit + 0.5
