"""What a site needs of Flower's internals: a minor version that breaks one fails here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedpriv.pki.keys import new_key
from fedpriv.wire import WHOLE
from fedpriv_client import connection
from fedpriv_client.flower import (
    FleetCalls,
    assemble,
    object_body,
    object_head,
    object_id_of,
    outgoing,
    set_message_id,
)

from .conftest import asked, deflated

KEY = new_key()
ANSWERS: dict[str, Any] = {
    "ActivateNode": ActivateNodeResponse(node_id=5),
    "DeactivateNode": DeactivateNodeResponse(),
    "PullMessages": PullMessagesResponse(),
    "PullObject": PullObjectResponse(
        object_found=True, object_available=True, object_content=b"content"
    ),
    "ConfirmMessageReceived": ConfirmMessageReceivedResponse(),
    "PushMessages": PushMessagesResponse(session_id="s", objects_to_push=["b", "a", "b"]),
    "PushObject": PushObjectResponse(stored=True),
}


class Recorder(FleetCalls):
    """Sends nothing; answers as a server would, and keeps what it was asked."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("http://127.0.0.1:1", KEY, httpx.Client())
        self.answers = {**ANSWERS, **answers}
        self.asked: list[tuple[str, httpx.Request]] = []

    def exchange(self, request: httpx.Request, call: str) -> httpx.Response:
        self.asked.append((call, request))
        content = self.answers[call].SerializeToString()
        return httpx.Response(200, content=content, request=request)


def reply(values: int = 9) -> Message:
    """As an app gives it."""
    blocks = {key: Array(np.ones(values, np.float32)) for key in ("000000", "000001")}
    body = ConfigRecord({"body": "hello"})
    content = RecordDict({"fedpriv": body, "arrays": ArrayRecord(blocks)})
    request = asked()
    set_message_id(request, "asked")
    return Message(content, reply_to=request)


def test_a_message_can_be_named() -> None:
    message = asked()
    set_message_id(message, "a name")
    assert message.metadata.message_id == "a name", "a message's id is no longer kept where we set"
    answer = Message(RecordDict(), reply_to=message)
    assert answer.metadata.reply_to_message_id == "a name", "a reply names what it answers"


def test_an_object_is_a_head_and_a_body_named_by_its_digest() -> None:
    child = "ab" * 32
    content = deflated("RecordDict", [child], b"{}")
    assert object_id_of(content) == hashlib.sha256(content).hexdigest(), "ids are SHA-256"
    assert object_head(content) == ("RecordDict", [child]), "a head is kind, children, length"
    assert object_body(content, "RecordDict") == b"{}", "the body follows the first zero byte"
    with pytest.raises(ValueError):
        object_body(content, "ConfigRecord")
    with pytest.raises(KeyError):
        object_body(content, "MetricRecord")
    with pytest.raises(ValueError):
        object_head(b"no head")


def test_a_message_is_taken_apart_and_put_together_again() -> None:
    sent = reply()
    with outgoing(sent) as parts:
        found = {key: parts.content(key) for key in parts._objects}
    root = sent.metadata.message_id
    assert root in found, "a reply has to be named by its own content"
    assert all(object_id_of(content) == key for key, content in found.items())
    kinds = sorted(object_head(content)[0] for content in found.values())
    shape = ["Array", "ArrayChunk", "ArrayRecord", "ConfigRecord", "Message", "RecordDict"]
    assert kinds == shape, "a message has other kinds of objects; equal arrays were sent once"
    made = assemble(root, found)
    assert isinstance(made, Message), "what a message is made of has to make one"
    assert made.content["fedpriv"]["body"] == "hello"  # type: ignore[index]
    assert made.content["arrays"]["000001"].numpy().tolist() == [1.0] * 9  # type: ignore[index]


def test_an_array_of_a_block_is_in_one_chunk() -> None:
    """`envelope` reads this of an array, and of what refers to others."""
    with outgoing(reply()) as parts:
        bodies = {}
        for key in parts._objects:
            content = parts.content(key)
            kind = object_head(content)[0]
            bodies[kind] = object_body(content, kind), object_head(content)[1]
    array, chunks = bodies["Array"]
    assert json.loads(array)["arraychunk_ids"] == [0], "an array's body numbers its chunks"
    assert len(chunks) == 1
    for kind in ("RecordDict", "ArrayRecord"):
        body, children = bodies[kind]
        assert set(json.loads(body).values()) == set(children), f"a {kind}'s body is name → id"


def test_every_call_is_signed_and_says_its_versions() -> None:
    calls = Recorder()
    assert calls.activate() == 5
    (_, request) = calls.asked[0]
    wanted = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)
    assert all(name in request.headers for name in wanted), "a request has to be signed"
    assert any("version" in name for name in request.headers), "Flower's server asks for versions"
    assert calls.public_key == public_key_to_bytes(KEY.public_key()), "a node is known by its PEM"


@pytest.mark.parametrize(
    ("path", "kind", "call", "wanted"),
    [
        ("activate-node", ActivateNodeRequest, lambda c: c.activate(), 5),
        ("deactivate-node", DeactivateNodeRequest, lambda c: c.deactivate(5), None),
        ("pull-messages", PullMessagesRequest, lambda c: c.pull(5), None),
        ("pull-object", PullObjectRequest, lambda c: c.fetch(5, 1, "ab"), b"content"),
        (
            "confirm-message-received",
            ConfirmMessageReceivedRequest,
            lambda c: c.confirm(5, asked().metadata),
            None,
        ),
        ("push-object", PushObjectRequest, lambda c: c.push(5, 1, "s", "ab", b"x"), True),
    ],
)
def test_each_call_is_one_request_to_its_path(
    path: str, kind: type[Any], call: Callable[[FleetCalls], object], wanted: object
) -> None:
    calls = Recorder()
    assert call(calls) == wanted
    ((name, request),) = calls.asked
    assert request.url.path == f"/v1/fleet/{path}", "a call of the fleet API has moved"
    said = kind.FromString(request.content)
    node = said.node.node_id if "node" in kind.DESCRIPTOR.fields_by_name else 5
    assert path == "activate-node" or node == 5
    assert name.lower() == path.replace("-", ""), "answers are bounded by the name of the call"


def test_a_reply_is_announced_without_its_content() -> None:
    calls = Recorder()
    with outgoing(reply(WHOLE // 4)) as parts:
        assert calls.announce(5, parts) == ("s", ["b", "a"]), "a session, and what is missing once"
    said = PushMessagesRequest.FromString(calls.asked[0][1].content)
    (message,), (tree,) = said.messages_list, said.message_object_trees
    assert not message.content.ListFields(), "an announcement must carry no content"
    assert message.metadata.message_id == tree.object_id == parts.message.metadata.message_id
    assert message.metadata.reply_to_message_id == "asked"
    assert list(said.clientapp_runtime_list) == [0.0], "how long it took is nobody's business"


def test_a_small_reply_is_announced_with_its_content() -> None:
    calls = Recorder(PushMessages=PushMessagesResponse(session_id="s"))
    with outgoing(reply(WHOLE // 4 - 1000)) as parts:
        assert calls.announce(5, parts) == ("s", []), "nothing is left to send"
    said = PushMessagesRequest.FromString(calls.asked[0][1].content)
    came = message_from_proto(said.messages_list[0])
    assert came.content["fedpriv"]["body"] == "hello"  # type: ignore[index]
    assert came.content["arrays"]["000001"].numpy().tolist()[:1] == [1.0]  # type: ignore[index]
    assert said.ByteSize() < 3 * WHOLE, "a server reads no longer announcement"
    failed = Message(Error(1, ""), reply_to=asked())
    with outgoing(failed) as parts:
        calls.announce(5, parts)
    said = PushMessagesRequest.FromString(calls.asked[1][1].content)
    assert not said.messages_list[0].content.items, "an error has no content"


def test_what_waits_is_described_before_it_is_fetched() -> None:
    tree = ObjectTree(object_id="a", children=[ObjectTree(object_id="b")])
    message = asked(kind="train", group="7")
    set_message_id(message, "a")
    answer = PullMessagesResponse(
        messages_list=[message_to_proto(message)], message_object_trees=[tree]
    )
    announced = Recorder(PullMessages=answer).pull(5)
    assert announced is not None
    metadata = announced.metadata
    assert (metadata.message_id, metadata.message_type, metadata.group_id) == ("a", "train", "7")
    assert announced.object_ids() == {"a", "b"}, "a tree names every object of a message"
    assert announced.is_whole
    assert announced.whole().content["fedpriv"]["body"] == "{}"  # type: ignore[index]
    answer.messages_list[0].content.Clear()
    announced = Recorder(PullMessages=answer).pull(5)
    assert announced is not None and not announced.is_whole, "an empty content is none"


def test_an_object_that_is_not_there_is_none() -> None:
    assert Recorder(PullObject=PullObjectResponse(object_found=False)).fetch(5, 1, "ab") is None


def test_clocks_may_differ_as_much_as_flower_says() -> None:
    wanted = (connection.EARLY, connection.LATE)
    assert wanted == (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE), "ClockError says other seconds"
