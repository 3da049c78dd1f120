"""What a site releases in a round or a look, and says that it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpriv.errors import ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.protocol import Kind


@dataclass(frozen=True, eq=False)
class GradientSum:
    """The noisy sum of the sampled units' clipped vectors, from one private step.

    Attributes:
        values: (K,) float32.
    """

    values: Vector
    kind: ClassVar[Kind] = "gradient-sum"


@dataclass(frozen=True, eq=False)
class Move:
    """How far the private steps of a round went, as an optimiser takes it: downhill is positive.

    Attributes:
        values: (K,) float32, the values at the start less those at the end.
    """

    values: Vector
    kind: ClassVar[Kind] = "move"


@dataclass(frozen=True, eq=False)
class HeldOutSum:
    """How far held-out units are from public scores, added up over the steps of a look.

    Attributes:
        values: (2,) float32: of the loss, of the accuracy; see `fedpriv.training.held_out_sum`.
    """

    values: Vector
    kind: ClassVar[Kind] = "held-out-sum"


Released = GradientSum | Move | HeldOutSum
_TAGS: dict[type[Any], bytes] = {GradientSum: b"S", Move: b"M", HeldOutSum: b"H"}


def pack(released: Released) -> bytes:
    """As it is kept in a ledger's outbox: one byte that says what it is, then the values."""
    values = np.ascontiguousarray(released.values, dtype="<f4")
    return _TAGS[type(released)] + values.tobytes()


def unpack(stored: bytes) -> Released:
    """What `pack` made.

    Raises:
        ProtocolError: it was stored by another version of fedpriv.
    """
    for kind, tag in _TAGS.items():
        if stored[:1] == tag and len(stored) % 4 == 1:
            made: Released = kind(np.frombuffer(stored[1:], dtype="<f4").astype(np.float32))
            return made
    raise ProtocolError("The stored reply was written by another version: begin a new job.")
