from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedpriv import wire as wire_module
from fedpriv.errors import ProtocolError, RawValueError, RoundError
from fedpriv.names import Wire
from fedpriv.privacy.mechanism.privatised import TrustModel, public
from fedpriv.protocol import FAILED, Offer, Refusal, StepReply
from fedpriv.wire import encode
from fedpriv_strategies.messages import (
    as_arrays,
    as_blocks,
    body_bytes,
    parse_answer,
    payload_bytes,
)


def arrays_of(vector: Any, wire: Wire) -> ArrayRecord:
    """As a site makes them."""
    return ArrayRecord({name: Array(block) for name, block in encode(vector, wire)})


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_a_vector_arrives_as_it_was_sent_and_rests_on_the_senders_word(values: list[float]) -> None:
    sent = np.array(values, dtype=np.float32)
    found = as_blocks(as_arrays(public(sent)), len(values), "float32")
    assert np.array_equal(found.value.vector(), sent)
    assert found.trust_model == TrustModel.RECEIVED


def test_a_vector_is_sent_in_blocks_that_flower_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "BLOCK", 50)
    sent = np.random.default_rng(0).normal(size=120).astype(np.float32)
    arrays = as_arrays(public(sent))
    assert list(arrays) == ["000000", "000001", "000002"]
    assert np.array_equal(np.concatenate([array.numpy() for array in arrays.values()]), sent)
    raw: Any = sent
    with pytest.raises(RawValueError):
        as_arrays(raw)


@pytest.mark.parametrize(
    "arrays",
    [
        ArrayRecord(),
        ArrayRecord({"vector": Array(np.zeros(3, dtype=np.float32))}),
        ArrayRecord({"000000": Array(np.zeros(2, dtype=np.float32))}),
        ArrayRecord({"000000": Array(np.zeros(3, dtype=np.float64))}),
        ArrayRecord({"000000": Array(np.full(3, np.nan, dtype=np.float32))}),
        ArrayRecord({"000000": Array("float32", (3,), "numpy.ndarray", b"garbage")}),
    ],
)
def test_what_is_no_such_vector_is_refused(arrays: ArrayRecord) -> None:
    with pytest.raises(ProtocolError):
        as_blocks(arrays, 3, "float32").value.vector()


@pytest.mark.parametrize("error", [ValueError("not an array"), KeyError("lost")])
def test_an_array_that_can_not_be_read_is_the_senders_fault(error: Exception) -> None:
    class Stored(dict[str, Array]):
        def __getitem__(self, name: str) -> Array:
            raise error

    arrays: Mapping[str, Array] = Stored(arrays_of(np.zeros(3, np.float32), "float32"))
    blocks = as_blocks(arrays, 3, "float32").value
    with pytest.raises(ProtocolError, match="'000000' can't be read"):
        blocks.vector()


def test_a_disk_that_can_not_be_read_is_nobodys_fault_and_may_heal() -> None:
    class Stored(dict[str, Array]):
        def __getitem__(self, name: str) -> Array:
            raise OSError(24, "Too many open files")

    arrays: Mapping[str, Array] = Stored(arrays_of(np.zeros(3, np.float32), "float32"))
    with pytest.raises(RoundError, match="Too many open files") as caught:
        as_blocks(arrays, 3, "float32").value.vector()
    assert caught.value.may_heal


@pytest.mark.parametrize("wire", get_args(Wire))
def test_the_bytes_read_are_the_bytes_sent(wire: Wire) -> None:
    arrays = arrays_of(np.ones(700, np.float32), wire)
    content = RecordDict({"fedpriv": ConfigRecord({"body": "{}"}), "arrays": arrays})
    message: Any = SimpleNamespace(has_content=lambda: True, content=content)
    blocks = as_blocks(arrays, 700, wire).value
    blocks.vector()
    assert payload_bytes([message]) == body_bytes(message) + blocks.bytes_read
    assert blocks.bytes_read == sum(len(array.data) for array in arrays.values())
    assert body_bytes(message) == 2


@pytest.mark.parametrize("kind", [Offer, StepReply])
def test_a_refusal_is_told_from_an_answer(kind: type[Offer] | type[StepReply]) -> None:
    found = parse_answer(kind, FAILED.model_dump_json())
    assert isinstance(found, Refusal)
    assert found.reason == "failed (StepFailedError)"
