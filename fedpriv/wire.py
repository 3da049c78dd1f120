"""A vector as it travels: blocks of values in one of three formats, all little-endian.

    wire      arrays of a block of n values                            bytes a value   error of x
    float32   NNNNNN: n float32                                        4               0
    bf16      NNNNNN: n uint16, the upper halves of n float32          2               |x| / 2⁸
    int8      NNNNNN: n int8, and NNNNNN.scale: a float32 for each 256 1 + 1/64        max|x| / 253

The error is a bound on what rounding to the nearest changes, apart from 2⁻¹³³ near zero. For int8
the maximum is over the 256 values that share a scale. Gaussian noise in a released vector is far
above both. NNNNNN counts the blocks from 000000. Each array is in NumPy's own format.

Privacy:
    Rounding what was released is post-processing: it costs nothing and weakens nothing.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from fedpriv.errors import ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.names import Wire
from fedpriv.secure_sum.masks import DTYPES, Masked
from fedpriv.secure_sum.members import Bits

BLOCK = 1 << 20  # values
GROUP = 256  # values that share a scale
WHOLE = 128 << 10  # bytes up to which a message is sent whole, not object by object
_F4, _U2, _I1, _U1 = np.dtype("<f4"), np.dtype("<u2"), np.dtype("i1"), np.dtype("u1")
_LARGEST = np.finfo(np.float32).max
_LARGEST_BF16 = np.uint32(0x7F7F0000).view(np.float32)
_LARGEST_SCALE = np.nextafter(_LARGEST / np.float32(127), np.float32(0))  # 127 times it is finite

Array = np.ndarray[Any, np.dtype[Any]]
Read = Callable[[str], bytes]  # the content of an array, by its name


def encode(vector: Vector, wire: Wire) -> Iterator[tuple[str, Array]]:
    """Yield the arrays that carry a float32 vector (P,), by name, one block after the other.

    Raises:
        ProtocolError: a value is not finite.
    """
    for index, part in enumerate(_parts(vector.size)):
        name, block = _name(index), vector[part]
        _check_finite(block, name)
        match wire:
            case "float32":
                yield name, block.astype(_F4, copy=False)
            case "bf16":
                yield name, _to_bf16(block)
            case "int8":
                values, scales = _to_int8(block)
                yield name, values
                yield _scale_of(index), scales


def encode_masked(masked: Masked) -> Iterator[tuple[str, Array]]:
    """Yield the arrays that carry a masked share (P,), by name, one block after the other."""
    for index, part in enumerate(_parts(masked.size)):
        yield _name(index), masked[part]


def encode_text(text: str) -> Iterator[tuple[str, Array]]:
    """Yield the arrays that carry a text of any length, by name: its UTF-8 bytes, in blocks."""
    content = np.frombuffer(text.encode(), dtype=_U1)
    for index, start in enumerate(range(0, content.size, 4 * BLOCK)):
        yield _name(index), content[start : start + 4 * BLOCK]


def decode_text(read: Read, names: Collection[str], largest: int) -> str:
    """Return a text that arrived.

    Args:
        read, names: as for `Blocks`.
        largest: the most bytes that it may have.

    Raises:
        ProtocolError: there are other arrays or more bytes, or the text is not UTF-8.
    """
    if set(names) != {_name(index) for index in range(len(names))}:
        raise ProtocolError("Expected the arrays of a text.")
    parts: list[bytes] = []
    for index in range(len(names)):
        data = read(_name(index))
        header = _header(_U1, max(0, len(data) - len(_header(_U1, 0))))
        if not data.startswith(header):
            raise ProtocolError(f"Expected bytes in array {_name(index)!r}.")
        parts.append(data[len(header) :])
        largest -= len(parts[-1])
        if largest < 0:
            raise ProtocolError("A text longer than any may be.")
    try:
        return b"".join(parts).decode()
    except UnicodeDecodeError:
        raise ProtocolError("A text that is not UTF-8.") from None


class _Arrived:
    """Hold the arrays of P values that arrived. They are checked while they are read.

    Args:
        read: gives the content of an array by its name.
        names: the names of the arrays that came.
        size: P, the required number of values.

    Attributes:
        bytes_read: the bytes that the last iteration has read.
    """

    def __init__(self, read: Read, names: Collection[str], size: int) -> None:
        self.size = size
        self.bytes_read = 0
        self._read, self._names = read, names

    def _check_names(self, form: str, *arrays: Callable[[int], str]) -> None:
        """Refuse any names other than those that `arrays` give to the blocks."""
        count = -(-self.size // BLOCK)
        # Counted first, so that a size that is only claimed makes no list of names.
        if self.size >= 0 and len(self._names) == len(arrays) * count:
            expected = {named(index) for named in arrays for index in range(count)}
            if set(self._names) == expected:
                return
        raise ProtocolError(f"Expected the arrays of {self.size} values as {form}.")

    def _load(self, name: str, dtype: np.dtype[Any], count: int) -> Array:
        data = self._read(name)
        self.bytes_read += len(data)
        header = _header(dtype, count)
        if len(data) != len(header) + count * dtype.itemsize or not data.startswith(header):
            raise ProtocolError(f"Expected {count} values of {dtype} in array {name!r}.")
        return np.frombuffer(data, dtype, offset=len(header))


class MaskedBlocks(_Arrived):
    """Decode a masked share that arrived, one block at a time while it is iterated.

    Each iteration reads and checks everything anew and keeps nothing.

    Args:
        read, names, size: as for `Blocks`.
        bits: the bits of a value.

    Raises:
        ProtocolError: from the iteration: not exactly the arrays expected, or one of another type
            or length. Any values are accepted, because masked values are uniform.
    """

    def __init__(self, read: Read, names: Collection[str], size: int, bits: Bits) -> None:
        super().__init__(read, names, size)
        self._dtype = DTYPES[bits]

    def __iter__(self) -> Iterator[tuple[slice, Masked]]:
        """Yield pairs of where a block belongs and its values."""
        self.bytes_read = 0
        self._check_names(str(self._dtype), _name)
        for index, part in enumerate(_parts(self.size)):
            yield part, self._load(_name(index), self._dtype, part.stop - part.start)


class Blocks(_Arrived):
    """Decode a vector that arrived, one block at a time while it is iterated.

    Each iteration reads and checks everything anew and keeps nothing.

    Args:
        read: gives the content of an array by its name.
        names: the names of the arrays that came.
        size: P, the required number of values.

    Attributes:
        bytes_read: the bytes that the last iteration has read.

    Raises:
        ProtocolError: from the iteration: not exactly the arrays expected, one of another type
            or length, or a value that is not finite or that no sender makes.
    """

    def __init__(self, read: Read, names: Collection[str], size: int, wire: Wire) -> None:
        super().__init__(read, names, size)
        self._wire = wire

    def __iter__(self) -> Iterator[tuple[slice, Vector]]:
        """Yield pairs of where a block belongs and its values, float32."""
        self.bytes_read = 0
        self._check_arrays()
        for index, part in enumerate(_parts(self.size)):
            name, count = _name(index), part.stop - part.start
            match self._wire:
                case "float32":
                    block = self._load(name, _F4, count).astype(np.float32, copy=False)
                case "bf16":
                    block = _from_bf16(self._load(name, _U2, count))
                case "int8":
                    scales = self._load(_scale_of(index), _F4, -(-count // GROUP))
                    block = _from_int8(self._load(name, _I1, count), scales, name)
            _check_finite(block, name)
            yield part, block

    def vector(self) -> Vector:
        """Return the whole vector, (P,).

        Raises:
            ProtocolError: as by the iteration.
        """
        self._check_arrays()  # before memory is taken for what a sender only says it has
        whole = np.empty(self.size, dtype=np.float32)
        for part, block in self:
            whole[part] = block
        return whole

    def _check_arrays(self) -> None:
        arrays = (_name, _scale_of) if self._wire == "int8" else (_name,)
        self._check_names(self._wire, *arrays)


def _parts(size: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def _name(index: int) -> str:
    return f"{index:06d}"


def _scale_of(index: int) -> str:
    return f"{_name(index)}.scale"


def _header(dtype: np.dtype[Any], count: int) -> bytes:
    """Return what precedes an array's values. It is compared, so no parser sees sent text."""
    stream = io.BytesIO()
    form = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(stream, form)
    return stream.getvalue()


def _check_finite(block: Vector, name: str) -> None:
    if not np.isfinite(block).all():
        raise ProtocolError(f"Expected finite values in array {name!r}.")


def _to_bf16(block: Vector) -> Array:
    """Round to the nearest, ties to even; beyond the largest bf16, to it and not to infinity."""
    bits = np.clip(block, -_LARGEST_BF16, _LARGEST_BF16).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(_U2)


def _from_bf16(values: Array) -> Vector:
    return (values.astype(np.uint32) << 16).view(np.float32)


def _to_int8(block: Vector) -> tuple[Array, Array]:
    groups = _in_groups(block)  # (G, 256)
    scales = np.minimum(np.abs(groups).max(axis=1) / np.float32(127), _LARGEST_SCALE)
    steps = groups / np.where(scales == 0, 1, scales)[:, None]
    # A subnormal scale is so coarse that its 127-fold may be less than the maximum.
    values = np.rint(steps).clip(-127, 127).astype(_I1)
    return values.reshape(-1)[: block.size], scales.astype(_F4, copy=False)


def _from_int8(values: Array, scales: Array, name: str) -> Vector:
    if not ((scales >= 0) & (scales <= _LARGEST_SCALE)).all():
        raise ProtocolError(f"Expected scales from 0 to {_LARGEST_SCALE:g} in array {name!r}.")
    if (values == -128).any():
        raise ProtocolError(f"Expected values from -127 to 127 in array {name!r}.")
    block: Vector = _in_groups(values.astype(np.float32))
    block *= scales[:, None]
    return block.reshape(-1)[: values.size]


def _in_groups(values: Vector) -> Vector:
    """Return the values as (G, 256), filled up with zeros."""
    return np.pad(values, (0, -values.size % GROUP)).reshape(-1, GROUP)
