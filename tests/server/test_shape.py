"""What a reply may look like, before anything of it is kept."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.app.message import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import ProtocolError
from fedpriv.protocol import SetRequest
from fedpriv.secure_sum.masks import DTYPES
from fedpriv.wire import encode_masked
from fedpriv_server.upload import RECORDS, SLACK, Place, UploadLimits, check, outline
from fedpriv_strategies.messages import TRAIN_SET, message
from tests.secure_sum.secure_sites import set_of, sites

MEMBERS = set_of(sites("a", "b")).members
LIMITS = UploadLimits(SLACK, arrays=3)


def key(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def tree(name: object, *children: ObjectTree) -> ObjectTree:
    return ObjectTree(object_id=key(name), children=children)


def array(name: str, *chunks: str) -> ObjectTree:
    return tree(name, *(tree(chunk) for chunk in chunks or (f"chunk of {name}",)))


def reply(*records: ObjectTree) -> ObjectTree:
    return tree("message", tree("content", *records))


def chain(length: int) -> ObjectTree:
    found = tree(0)
    for number in range(1, length):
        found = tree(number, found)
    return found


def test_a_reply_with_a_body_and_arrays_is_one() -> None:
    places = outline(reply(tree("body"), tree("arrays", array("a"), array("b"))), LIMITS)
    assert len(places) == 8
    assert places[key("b")] == Place(3, (key("chunk of b"),))


@pytest.mark.parametrize(("bits", "values"), [(16, 2_000_000), (32, 2_000_000), (16, 200)])
def test_a_masked_share_has_the_room_that_its_request_asks_for(bits: int, values: int) -> None:
    """A set is sent without a vector, and what comes back may be far larger than it is."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    size = values * bits // 8
    body = SetRequest(job_id="job", slot=0, bits=bits, members=MEMBERS)
    asked = message(body, 7, TRAIN_SET, "1", reply_bytes=size)
    limits = UploadLimits.of_reply_to(asked.content)
    share = np.zeros(values, DTYPES[bits])
    arrays = {name: Array(block + i) for i, (name, block) in enumerate(encode_masked(share))}
    content = RecordDict({"fedpriv": ConfigRecord({"body": "{}"}), "arrays": ArrayRecord(arrays)})
    objects = get_all_nested_objects(content)
    assert size < sum(len(item.deflate()) for item in objects.values()) < limits.size
    outline(tree("message", get_object_tree(content)), limits)
    assert UploadLimits.of_reply_to(message(body, 7, TRAIN_SET, "1").content).size == SLACK


def test_arrays_of_the_same_values_are_one_object() -> None:
    """Two blocks of zeros, say: the same array, and so the same chunk."""
    assert len(outline(reply(tree("arrays", array("zeros"), array("zeros"))), LIMITS)) == 5


@pytest.mark.parametrize(
    "other",
    [
        chain(7),
        tree("message", tree("one"), tree("two")),
        reply(*(tree(number) for number in range(RECORDS + 1))),
        reply(tree("arrays", *(array(str(number)) for number in range(4)))),
        reply(tree("arrays", array("a", "one", "two"))),
        reply(tree("arrays", tree("an array of nothing"))),
        reply(tree("arrays", tree("array", tree("chunk", tree("below"))))),
        reply(tree("message")),
        reply(tree("arrays", array("a", "chunk"), array("chunk"))),
    ],
)
def test_any_other_shape_is_refused(other: ObjectTree) -> None:
    with pytest.raises(ProtocolError):
        outline(other, LIMITS)


def test_who_was_sent_nothing_sends_no_arrays_back() -> None:
    with pytest.raises(ProtocolError):
        outline(reply(tree("arrays", array("a"))), UploadLimits())


BODY = ConfigRecord({"body": "{}"}).deflate()
CHUNK = ArrayChunk(memoryview(b"1234")).deflate()
ARRAYS = ArrayRecord({"0": Array("float32", (1,), "numpy.ndarray", b"1234")})


def test_objects_are_what_was_announced() -> None:
    check(BODY, Place(2, ()))
    check(CHUNK, Place(4, ()))
    for content, place in (
        (BODY, Place(1, ())),  # a record, where the content was announced
        (BODY, Place(2, (key("x"),))),  # it refers to nothing
        (CHUNK, Place(2, ())),
        (ARRAYS.deflate(), Place(2, ())),  # it refers to something
        (BODY[:-1], Place(2, ())),
    ):
        with pytest.raises(ProtocolError):
            check(content, place)


@given(st.binary(max_size=200), st.integers(0, 4))
def test_no_bytes_get_past_but_as_announced(content: bytes, level: int) -> None:
    with pytest.raises(ProtocolError):
        check(content, Place(level, ()))


def test_objects_that_only_refer_are_small() -> None:
    head = json.dumps({"x" * (1 << 17): key("y")}).encode()
    content = f"RecordDict {key('y')} {len(head)}".encode() + b"\x00" + head
    with pytest.raises(ProtocolError, match="enough"):
        check(content, Place(1, (key("y"),)))
