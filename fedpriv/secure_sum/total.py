"""Add up the masked shares of a set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fedpriv.errors import ProtocolError
from fedpriv.secure_sum.masks import BLOCK, DTYPES, Masked, Share
from fedpriv.secure_sum.members import Bits

Blocks = Iterable[tuple[slice, Masked]]


class Total:
    """A sum modulo 2^bits. It means something once every member of the set is in it, once.

    Args:
        size: P, the number of values.
        bits: the bits of a value.
    """

    def __init__(self, size: int, bits: Bits) -> None:
        self._sum: Masked = np.zeros(size, DTYPES[bits])

    def add(self, blocks: Blocks) -> None:
        """Add a masked share, whole or not at all.

        Args:
            blocks: its blocks, in order, as pairs of a place and values. They are gone through
                twice.

        Raises:
            ProtocolError: they are not a share of that size and type.
        """
        for _ in self._checked(blocks):
            pass
        for place, values in self._checked(blocks):
            part = self._sum[place]
            np.add(part, values, out=part)

    def signed_blocks(self) -> Iterator[tuple[slice, Share]]:
        """Yield pairs of a place and its values, each from −2^(bits−1) to 2^(bits−1) − 1."""
        centred = self._sum.view(self._sum.dtype.str.replace("u", "i"))
        for start in range(0, self._sum.size, BLOCK):
            place = slice(start, min(start + BLOCK, self._sum.size))
            yield place, centred[place].astype(np.int64)

    def _checked(self, blocks: Blocks) -> Iterator[tuple[slice, Masked]]:
        end = 0
        for place, values in blocks:
            whole = (place.start, place.stop) == (end, end + values.size)
            if not whole or values.dtype != self._sum.dtype:
                break
            end = place.stop
            yield place, values
        else:
            if end == self._sum.size:
                return
        raise ProtocolError(f"Expected {self._sum.size} values of {self._sum.dtype} in order.")
