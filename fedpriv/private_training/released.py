"""Define what a site releases in a round or a look, each with the kind that it states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpriv.errors import ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.protocol import Kind
from fedpriv.secure_sum.masks import Masked


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
    """The move of a round's private steps, as an optimiser takes a gradient: downhill is positive.

    Attributes:
        values: (K,) float32, the values at the start minus those at the end.
    """

    values: Vector
    kind: ClassVar[Kind] = "move"


@dataclass(frozen=True, eq=False)
class HeldOutSum:
    """Distances of held-out units from public scores, added up over the steps of a look.

    Attributes:
        values: (2,) float32, for loss and accuracy; see `held_out_sum`.
    """

    values: Vector
    kind: ClassVar[Kind] = "held-out-sum"


@dataclass(frozen=True, eq=False)
class MaskedShare:
    """A site's part of a secure sum, under masks that cancel when all parts are added up.

    Attributes:
        values: (K,) uint16 or uint32, a sum modulo 2^16 or 2^32.

    Privacy:
        Not privatised by itself, so it is not among `Released`; the complete sum is. See
        docs/explanation/secure-sum.md.
    """

    values: Masked
    kind: ClassVar[Kind] = "masked-share"


Released = GradientSum | Move | HeldOutSum
_TAGS: dict[type[Any], bytes] = {GradientSum: b"S", Move: b"M", HeldOutSum: b"H"}
# Types of a masked share's values, by its first byte.
_WORDS: dict[bytes, np.dtype[Any]] = {b"2": np.dtype("<u2"), b"4": np.dtype("<u4")}


def pack_share(share: MaskedShare) -> bytes:
    """Pack a share for a ledger's outbox: one byte for the size of its values, then the values."""
    for tag, words in _WORDS.items():
        if share.values.dtype == words:
            return tag + np.ascontiguousarray(share.values).tobytes()
    raise ProtocolError(f"Expected uint16 or uint32, got {share.values.dtype}.")


def unpack_share(stored: bytes) -> MaskedShare:
    """Unpack what `pack_share` made.

    Raises:
        ProtocolError: another version of fedpriv stored it.
    """
    words = _WORDS.get(stored[:1])
    if words is None or (len(stored) - 1) % words.itemsize:
        raise ProtocolError("The stored share was written by another version: begin a new job.")
    return MaskedShare(np.frombuffer(stored[1:], dtype=words))


def pack(released: Released) -> bytes:
    """Pack a release for a ledger's outbox: one byte that says what it is, then the values."""
    values = np.ascontiguousarray(released.values, dtype="<f4")
    return _TAGS[type(released)] + values.tobytes()


def unpack(stored: bytes) -> Released:
    """Unpack what `pack` made.

    Raises:
        ProtocolError: another version of fedpriv stored it.
    """
    for kind, tag in _TAGS.items():
        if stored[:1] == tag and len(stored) % 4 == 1:
            made: Released = kind(np.frombuffer(stored[1:], dtype="<f4").astype(np.float32))
            return made
    raise ProtocolError("The stored reply was written by another version: begin a new job.")
