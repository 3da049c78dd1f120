"""Vectors on their way: what comes back, how far it is from what was sent, what is refused."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fedpriv import wire as wire_module
from fedpriv.errors import ProtocolError
from fedpriv.names import Wire
from fedpriv.secure_sum.members import Bits
from fedpriv.wire import (
    BLOCK,
    GROUP,
    Blocks,
    MaskedBlocks,
    decode_text,
    encode,
    encode_masked,
    encode_text,
)

WIRES: tuple[Wire, ...] = get_args(Wire)
LARGEST = float(np.finfo(np.float32).max)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = st.lists(FINITE | st.floats(-1, 1, width=32), min_size=1, max_size=700).map(np.float32)
Arrays = dict[str, bytes]


def stored(array: Any) -> bytes:
    """As Flower stores an array."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def sent(vector: Any, wire: Wire) -> Arrays:
    return {name: stored(array) for name, array in encode(vector, wire)}


def arrived(arrays: Arrays, size: int, wire: Wire) -> Any:
    return Blocks(arrays.__getitem__, arrays.keys(), size, wire).vector()


def error_bound(vector: Any, wire: Wire) -> Any:
    """That of the module's table, in float64."""
    exact = np.abs(vector.astype(np.float64))
    if wire == "bf16":
        return exact / 2**8 + 2.0**-133
    groups = np.pad(exact, (0, -exact.size % GROUP)).reshape(-1, GROUP).max(axis=1)
    return np.repeat(groups, GROUP)[: exact.size] / 253 + 2.0**-133


@given(VECTORS)
@example(np.float32([0.0, -0.0, 1e-45, -LARGEST]))
def test_float32_arrives_bit_for_bit(vector: Any) -> None:
    found = arrived(sent(vector, "float32"), vector.size, "float32")
    assert found.dtype == np.float32
    assert np.array_equal(found.view(np.uint32), vector.view(np.uint32))


@pytest.mark.parametrize("wire", ["bf16", "int8"])
@given(vector=VECTORS)
@example(vector=np.float32([LARGEST, -LARGEST, 1.0]))
@example(vector=np.arange(300, dtype=np.uint32).view(np.float32))  # subnormal
@example(vector=np.float32([180 * 2.0**-149]))  # its scale rounds down to one 180th
def test_rounding_changes_no_more_than_it_says(wire: Wire, vector: Any) -> None:
    found = arrived(sent(vector, wire), vector.size, wire)
    assert found.dtype == np.float32
    error = np.abs(found.astype(np.float64) - vector.astype(np.float64))
    assert (error <= error_bound(vector, wire)).all()


def test_the_bounds_are_not_far_from_what_happens() -> None:
    vector = np.random.default_rng(0).normal(size=10**5).astype(np.float32)
    for wire in ("bf16", "int8"):
        error = np.abs(arrived(sent(vector, wire), vector.size, wire) - vector)
        assert (error / error_bound(vector, wire)).max() > 0.98


@given(VECTORS)
def test_bf16_is_torchs(vector: Any) -> None:
    vector = np.clip(vector, -3e38, 3e38)  # torch goes on to infinity
    expected = torch.from_numpy(vector).bfloat16().float().numpy()
    assert np.array_equal(arrived(sent(vector, "bf16"), vector.size, "bf16"), expected)


def test_zeros_have_no_scale_and_stay_zeros() -> None:
    arrays = dict(encode(np.zeros(300, np.float32), "int8"))
    assert not arrays["000000.scale"].any()
    assert not arrived(sent(np.zeros(300, np.float32), "int8"), 300, "int8").any()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", [1, 49, 50, 51, 150, 151])
def test_blocks_follow_each_other(wire: Wire, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "BLOCK", 50)
    vector = np.random.default_rng(size).normal(size=size).astype(np.float32)
    arrays = sent(vector, wire)
    blocks = Blocks(arrays.__getitem__, arrays.keys(), size, wire)
    parts = list(blocks)
    assert [part.start for part, _ in parts] == list(range(0, size, 50))
    assert all(block.size == part.stop - part.start <= 50 for part, block in parts)
    assert parts[-1][0].stop == size
    assert blocks.bytes_read == sum(map(len, arrays.values()))
    whole = np.concatenate([block for _, block in parts])
    assert np.array_equal(whole, blocks.vector())
    assert np.array_equal(whole, np.concatenate([b for _, b in blocks]))  # read again: the same
    assert sorted(arrays)[0] == "000000"
    if wire == "float32":
        assert np.array_equal(whole, vector)


@pytest.mark.parametrize(
    ("wire", "bytes_a_value"), [("float32", 4), ("bf16", 2), ("int8", 65 / 64)]
)
def test_a_value_takes_as_many_bytes_as_it_says(wire: Wire, bytes_a_value: float) -> None:
    size = 2 * BLOCK
    arrays = dict(encode(np.ones(size, np.float32), wire))
    assert sum(array.nbytes for array in arrays.values()) == size * bytes_a_value


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_sent(wire: Wire, bad: float) -> None:
    with pytest.raises(ProtocolError, match="finite values in array '000000'"):
        dict(encode(np.float32([1.0, bad]), wire))


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: value for key, value in arrays.items() if key != name}


def but(name: str, array: Any) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: array if isinstance(array, bytes) else stored(array)}


def renamed(name: str, new: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {new if key == name else key: value for key, value in arrays.items()}


F, U, I = np.float32, np.uint16, np.int8  # noqa: E741
ONES, VALUES, SCALES = np.ones(300, F), np.ones(300, I), np.ones(2, F)
MALFORMED: list[tuple[Wire, str, Callable[[Arrays], Arrays]]] = [
    *(
        (wire, what, change)
        for wire in WIRES
        for what, change in (
            ("no arrays", lambda arrays: {}),
            ("one more", but("000001", ONES)),
            ("an old name", renamed("000000", "vector")),
            ("another number", renamed("000000", "000001")),
            ("a path", renamed("000000", "../000000")),
            ("nothing", but("000000", b"")),
            ("garbage", but("000000", b"garbage")),
            ("a pickle", but("000000", b"\x80\x04N.")),
            ("strings", but("000000", np.array(["x"] * 300))),
            ("float64", but("000000", np.ones(300))),
            ("a matrix", but("000000", np.ones((1, 300), F))),
            ("empty", but("000000", np.ones(0, F))),
        )
    ),
    ("float32", "too short", but("000000", ONES[1:])),
    ("float32", "too long", but("000000", np.ones(301, F))),
    ("float32", "big-endian", but("000000", ONES.astype(">f4"))),
    ("float32", "integers", but("000000", ONES.view(np.int32))),
    ("float32", "cut", but("000000", stored(ONES)[:-1])),
    ("float32", "something behind", but("000000", stored(ONES) + b"\0")),
    ("float32", "NaN", but("000000", np.append(ONES[1:], F(math.nan)))),
    ("float32", "infinity", but("000000", np.append(ONES[1:], F(math.inf)))),
    ("bf16", "float16", but("000000", np.ones(300, np.float16))),
    ("bf16", "signed", but("000000", np.ones(300, np.int16))),
    ("bf16", "NaN", but("000000", np.full(300, 0x7FC0, U))),
    ("bf16", "infinity", but("000000", np.full(300, 0xFF80, U))),
    ("int8", "unsigned", but("000000", np.ones(300, np.uint8))),
    ("int8", "-128", but("000000", np.append(VALUES[1:], I(-128)))),
    ("int8", "no scales", without("000000.scale")),
    ("int8", "no values", without("000000")),
    ("int8", "scales alone, two of them", renamed("000000", "000001.scale")),
    ("int8", "a scale less", but("000000.scale", SCALES[1:])),
    ("int8", "a scale more", but("000000.scale", np.ones(3, F))),
    ("int8", "float64 scales", but("000000.scale", np.ones(2))),
    *(
        ("int8", f"scale {bad:g}", but("000000.scale", F([1, bad])))
        for bad in (math.nan, math.inf, -math.inf, -1, -1e-45, LARGEST, 2.68e36)
    ),
]


@pytest.mark.parametrize(("wire", "what", "change"), MALFORMED)
def test_what_is_malformed_is_refused(
    wire: Wire, what: str, change: Callable[[Arrays], Arrays]
) -> None:
    good = sent(np.linspace(-1, 1, 300, dtype=F), wire)
    assert arrived(good, 300, wire).size == 300
    with pytest.raises(ProtocolError, match="Expected"):
        arrived(change(good), 300, wire)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("other", WIRES)
def test_another_format_is_refused(wire: Wire, other: Wire) -> None:
    arrays = sent(ONES, other)
    if wire == other:
        assert np.allclose(arrived(arrays, 300, wire), 1)
    else:
        with pytest.raises(ProtocolError):
            arrived(arrays, 300, wire)


@given(wire=st.sampled_from(WIRES), data=st.data())
def test_a_changed_byte_is_refused_or_another_finite_vector(wire: Wire, data: Any) -> None:
    arrays = sent(np.linspace(-1, 1, 20, dtype=F), wire)
    name = data.draw(st.sampled_from(sorted(arrays)))
    raw = bytearray(arrays[name])
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = arrived({**arrays, name: bytes(raw)}, 20, wire)
    except ProtocolError:
        return
    assert found.shape == (20,) and found.dtype == F and np.isfinite(found).all()


@pytest.mark.parametrize("size", [-1, -BLOCK, 10**18])
def test_a_size_that_nothing_was_sent_for_takes_no_memory(size: int) -> None:
    with pytest.raises(ProtocolError, match="Expected the arrays"):
        arrived(sent(ONES, "float32"), size, "float32")


def test_a_value_that_no_sender_makes_is_found_in_the_last_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_module, "BLOCK", 50)
    arrays = sent(np.ones(120, F), "float32")
    arrays["000002"] = stored(np.append(np.ones(19, F), F(math.nan)))
    blocks = iter(Blocks(arrays.__getitem__, arrays.keys(), 120, "float32"))
    next(blocks), next(blocks)
    with pytest.raises(ProtocolError, match="'000002'"):
        next(blocks)


@pytest.mark.slow
@given(st.text(max_size=200))
def test_a_text_arrives_as_it_was(text: str) -> None:
    arrays = {name: stored(block) for name, block in encode_text(text)}
    assert decode_text(arrays.__getitem__, arrays.keys(), 10**6) == text


def test_a_text_travels_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "BLOCK", 2)
    text = "é" * 20
    arrays = {name: stored(block) for name, block in encode_text(text)}
    assert len(arrays) == 5
    assert decode_text(arrays.__getitem__, arrays.keys(), 40) == text
    for largest, changed, words in (
        (39, arrays, "longer than any"),
        (40, {"000001": arrays["000000"]}, "arrays of a text"),
        (40, {"000000": arrays["000000"][:-1]}, "Expected bytes"),
        (40, {"000000": stored(np.frombuffer(b"\xff\xfe", dtype="u1"))}, "not UTF-8"),
        (40, {"000000": stored(np.zeros(3, dtype="<f4"))}, "Expected bytes"),
    ):
        with pytest.raises(ProtocolError, match=words):
            decode_text(changed.__getitem__, changed.keys(), largest)


def masked_arrays(values: Any) -> Arrays:
    return {name: stored(array) for name, array in encode_masked(values)}


@pytest.mark.parametrize("bits", [16, 32])
@given(data=st.data())
def test_a_masked_share_arrives_bit_for_bit(bits: Bits, data: Any) -> None:
    whole = st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=700)
    values = np.array(data.draw(whole), f"<u{bits // 8}")
    arrays = masked_arrays(values)
    blocks = MaskedBlocks(arrays.__getitem__, arrays.keys(), values.size, bits)
    [(place, found)] = blocks
    assert place == slice(0, values.size)
    assert found.dtype == values.dtype and np.array_equal(found, values)
    assert blocks.bytes_read == sum(map(len, arrays.values()))


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_a_masked_share_travels_in_blocks(size: int) -> None:
    values = np.arange(size).astype("<u2")
    arrays = masked_arrays(values)
    assert sorted(arrays) == [f"{index:06d}" for index in range(-(-size // BLOCK))]
    assert sum(array.nbytes for _, array in encode_masked(values)) == 2 * size
    for _ in range(2):  # read again: the same
        blocks = MaskedBlocks(arrays.__getitem__, arrays.keys(), size, 16)
        assert np.array_equal(np.concatenate([block for _, block in blocks]), values)


W = np.ones(300, "<u2")
NOT_MASKED: dict[str, Callable[[Arrays], Arrays]] = {
    "no arrays": lambda arrays: {},
    "one more": but("000001", W),
    "scales": but("000000.scale", ONES),
    "an old name": renamed("000000", "vector"),
    "another number": renamed("000000", "000001"),
    "a path": renamed("000000", "../000000"),
    "nothing": but("000000", b""),
    "a pickle": but("000000", b"\x80\x04N."),
    "objects": but("000000", stored(W).replace(b"<u2", b"|O8")),
    "signed": but("000000", W.astype("<i2")),
    "big-endian": but("000000", W.astype(">u2")),
    "another width": but("000000", W.astype("<u4")),
    "as many bytes": but("000000", np.ones(150, "<u4")),
    "float16": but("000000", W.astype("<f2")),
    "a matrix": but("000000", W[None]),
    "too short": but("000000", W[1:]),
    "too long": but("000000", np.ones(301, "<u2")),
    "cut": but("000000", stored(W)[:-1]),
    "something behind": but("000000", stored(W) + b"\0"),
}


@pytest.mark.parametrize("what", NOT_MASKED)
def test_what_is_no_masked_share_is_refused(what: str) -> None:
    arrays = NOT_MASKED[what](masked_arrays(W))
    with pytest.raises(ProtocolError, match="Expected"):
        list(MaskedBlocks(arrays.__getitem__, arrays.keys(), 300, 16))


@pytest.mark.parametrize("size", [-1, 10**18])
def test_a_masked_share_of_a_size_that_is_only_claimed_takes_no_memory(size: int) -> None:
    arrays = masked_arrays(W)
    with pytest.raises(ProtocolError, match="Expected the arrays"):
        list(MaskedBlocks(arrays.__getitem__, arrays.keys(), size, 16))
