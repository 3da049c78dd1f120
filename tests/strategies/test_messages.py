from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import ProtocolError
from fedpriv.privacy.privatised import TrustModel, public
from fedpriv.protocol import FAILED, Offer, Refusal, StepReply, parse_answer
from fedpriv_strategies.messages import as_arrays, as_vector


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_a_vector_arrives_as_it_was_sent_and_rests_on_the_senders_word(values: list[float]) -> None:
    sent = np.array(values, dtype=np.float32)
    found = as_vector(as_arrays(public(sent)), len(values))
    assert np.array_equal(found.value, sent)
    assert found.trust_model == TrustModel.RECEIVED


@pytest.mark.parametrize(
    "arrays",
    [
        ArrayRecord(),
        ArrayRecord({"other": Array(np.zeros(3, dtype=np.float32))}),
        ArrayRecord({"vector": Array(np.zeros(2, dtype=np.float32))}),
        ArrayRecord({"vector": Array(np.zeros(3, dtype=np.float64))}),
        ArrayRecord({"vector": Array(np.full(3, np.nan, dtype=np.float32))}),
        ArrayRecord({"vector": Array("float32", (3,), "numpy.ndarray", b"garbage")}),
    ],
)
def test_what_is_no_such_vector_is_refused(arrays: ArrayRecord) -> None:
    with pytest.raises(ProtocolError):
        as_vector(arrays, 3)


@pytest.mark.parametrize("kind", [Offer, StepReply])
def test_a_refusal_is_told_from_an_answer(kind: type[Offer] | type[StepReply]) -> None:
    found = parse_answer(kind, FAILED.model_dump_json())
    assert isinstance(found, Refusal)
    assert found.reason == "failed (StepFailedError)"
