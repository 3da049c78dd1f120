"""What the server needs of Flower's internals: a minor version that breaks one fails here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, recorddict_to_proto
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supernode import node_auth_http_interceptor as signing

from fedpriv.errors import ProtocolError
from fedpriv.pki.keys import new_key, public_pem
from fedpriv_client.flower import FleetCalls
from fedpriv_server.flower import messages, requests
from fedpriv_server.flower.messages import ArrayChunk, ObjectTree
from fedpriv_server.flower.requests import Signature, fleet
from fedpriv_server.flower.state import FleetState
from tests.network.network_by_hand import Network, Reply, content_of


class Expected:
    """Where a reply comes: keeps what it is given, or refuses it."""

    def __init__(self, node: int, problem: Exception | None = None) -> None:
        self.node, self.session, self._problem = node, None, problem
        self.objects: dict[str, bytes] = {}

    session: str | None

    def announce(self, message_id: str, tree: ObjectTree) -> None:
        """Nothing to look at."""

    def missing(self) -> list[str]:
        return ["a"]

    def put(self, key: str, content: bytes) -> None:
        if self._problem is not None:
            raise self._problem
        self.objects[key] = content


class Made:
    """A state, with what it refused."""

    def __init__(self) -> None:
        self.refused: list[Exception] = []
        self.state = FleetState(self.refused.append)
        self.store = self.state.objects


@pytest.fixture
def made() -> Iterator[Made]:
    yield Made()
    messages.set_identity(1, 1)


def large() -> RecordDict:
    """A content that does not travel with its message."""
    values = np.arange(64 << 10, dtype=np.float32)
    return RecordDict({"arrays": ArrayRecord({"a": Array(values)})})


# Messages and objects


def test_a_message_is_of_the_process_that_was_named() -> None:
    messages.set_identity(7, 8)
    metadata = Message(RecordDict(), 5, "train", group_id="3").metadata
    said = (metadata.run_id, metadata.src_task_id, metadata.src_node_id)
    messages.set_identity(1, 1)
    assert said == (7, 8, messages.SERVER_NODE), "Message no longer asks the process who it is"
    assert (metadata.dst_node_id, metadata.group_id) == (5, "3")


def test_a_message_can_be_named_and_answered_for_another() -> None:
    messages.set_identity(1, 1)
    message = Message(RecordDict(), 5, "train", group_id="3")
    messages.set_message_id(message, "a name")
    assert message.metadata.message_id == "a name", "a message's id is no longer kept where we set"
    reply = Message(RecordDict(), reply_to=message)
    assert reply.metadata.reply_to_message_id == "a name"
    turned = messages.replying(reply, "another", content=content_of("hello"))
    assert turned.metadata.reply_to_message_id == "another"
    assert (turned.metadata.src_node_id, turned.metadata.group_id) == (5, "3")
    assert turned.content["fedpriv"]["body"] == "hello"  # type: ignore[index]
    failed = messages.replying(reply, "another", error=Error(messages.APP_FAILED, "unreadable"))
    assert failed.has_error() and failed.error.code == 2, "2 is a ClientApp that failed"


def test_objects_are_read_as_flower_writes_them() -> None:
    objects = get_all_nested_objects(large())
    contents = {key: item.deflate() for key, item in objects.items()}
    kinds = {messages.object_head(content)[0]: content for content in contents.values()}
    assert set(kinds) == {"ArrayChunk", "Array", "ArrayRecord", "RecordDict"}
    assert all(messages.object_id_of(content) == key for key, content in contents.items())
    body = messages.object_body(kinds["ArrayChunk"], ArrayChunk)
    assert len(body) >= 4 * (64 << 10), "a chunk is the values and little else"
    assert kinds["ArrayRecord"].startswith(b"ArrayRecord"), "an object begins with its kind"


@pytest.mark.parametrize(
    "content", [b"", b"Message", b"Message  1\x00", b"Nonsense  0\x00", b"Message ab 0\x00"]
)
def test_an_object_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(Exception):  # noqa: B017 - of any kind
        messages.object_head(content)


# The link state


def test_shared_objects_are_kept_once(made: Made) -> None:
    first, second = made.state.keep(large()), made.state.keep(large())
    assert first == second and len(made.store) == 4, "the store counts references to an object"
    made.state.release(first)
    assert len(made.store) == 4
    made.state.release(second)
    assert not len(made.store), "what nothing refers to has to go"


def test_a_message_carries_a_content_that_is_kept(made: Made) -> None:
    node = made.state.add_node("site", public_pem(new_key().public_key()))
    made.state.activate_node(node, 60.0)  # as the route does
    kept = made.state.keep(large())
    key = made.state.post(node, kept, "train", "1", 60.0, Expected(node))
    assert key is not None and key in made.state.expected
    made.state.release(kept)
    assert kept.root in made.store, "a message holds what it refers to"
    made.state.discard({key})
    assert not len(made.store) and key not in made.state.expected
    assert made.state.post(12345, kept, "train", "1", 60.0, Expected(12345)) is None


def test_a_message_is_there_with_its_objects_or_not_at_all(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that asks while a message is posted must not take it from the mailbox without them."""
    state = made.state
    node = made.state.add_node("site", public_pem(new_key().public_key()))
    state.activate_node(node, 60.0)
    kept, put = made.state.keep(large()), made.store.put
    early: list[Message] = []

    def asked_meanwhile(key: str, content: bytes) -> None:
        early.extend(state.get_message_ins(node, 1))
        put(key, content)

    monkeypatch.setattr(made.store, "put", asked_meanwhile)
    key = made.state.post(node, kept, "train", "1", 60.0, Expected(node))
    assert early == []
    assert [one.metadata.message_id for one in state.get_message_ins(node, 1)] == [key]
    assert key in made.store


def test_withdrawn_messages_leave_nothing_in_a_mailbox(made: Made) -> None:
    state = made.state
    node = made.state.add_node("site", public_pem(new_key().public_key()))
    state.activate_node(node, 60.0)
    kept = made.state.keep(large())
    for _ in range(5):  # a node that never asks
        key = made.state.post(node, kept, "train", "1", 60.0, Expected(node))
        assert key is not None
        made.state.discard({key})
    assert state.mailboxes[node] == []


def test_a_node_takes_its_own_messages_one_by_one(made: Made) -> None:
    state = made.state
    kept = made.state.keep(large())

    def add(name: str) -> int:
        node = made.state.add_node(name, public_pem(new_key().public_key()))
        state.activate_node(node, 60.0)
        return node

    def post(node: int) -> str:
        key = made.state.post(node, kept, "train", "1", 600.0, Expected(node))
        assert key is not None
        return key

    def take(node: int) -> list[str]:
        return [message.metadata.message_id for message in state.get_message_ins(node, 1)]

    one, other = add("one"), add("other")
    first, second, third = post(one), post(one), post(one)
    others, late = post(other), post(other)
    state.message_ins_store[late].metadata.ttl = 0.0
    made.state.discard({second})
    assert take(one) == [first] and take(other) == [others], "in their order, each its own"
    assert take(other) == [], "one that is too old is not given"
    assert late not in state.message_ins_store
    assert take(one) == [third] and take(one) == []


def test_a_node_is_known_by_the_pem_of_its_key(made: Made) -> None:
    key = public_pem(new_key().public_key())
    assert made.state.node_of(key) is None
    node = made.state.add_node("site", key)
    assert made.state.node_of(key) == node, "a node is found by its key"
    made.state.keep_run()
    made.state.heard(node)


def test_what_a_site_sends_goes_where_it_is_expected(made: Made) -> None:
    """Flower's servicers have to call these of the state, by these names."""
    state = made.state
    first, second = Expected(2), Expected(3, ProtocolError("not this"))
    state.expected = {"one": first, "two": second}
    sessions = {state.start_session(made.state.run) for _ in range(9)}
    assert len(sessions) == 9 and min(map(len, sessions)) >= 32, "a session can't be guessed"
    first.session, second.session = "s", "t"
    assert state.store_object(made.state.run, "s", "a", b"x") and first.objects == {"a": b"x"}
    assert not state.store_object(made.state.run, "t", "a", b"x") and len(made.refused) == 1
    assert not state.store_object(made.state.run, "u", "a", b"x"), "of no session"


def test_a_message_and_its_reply_pass_through_flower(network: Network) -> None:
    """The routes, the servicers behind them, and the state: all of it, once."""
    site = network.site()  # has said who it is
    key = network.ask(site, large())
    answer = site.pull()
    assert len(answer.messages_list) == 1, "one message at a time"
    metadata = message_from_proto(answer.messages_list[0]).metadata
    (tree,) = answer.message_object_trees
    assert tree.object_id == metadata.message_id, "a message is named by the digest of its content"
    node, run = site.node.node_id, network.broker.state.run
    content = site.call.fetch(node, run, tree.object_id)
    assert content is not None and messages.object_id_of(content) == tree.object_id
    site.confirm(tree.object_id)
    assert site.call.fetch(node, run, tree.object_id) is None, "what is confirmed is removed"
    reply = Reply(metadata, content_of("hello"))
    site.announce(reply)
    announced = site.announce(reply)  # its answer may have been lost
    assert set(announced.objects_to_push) == set(reply.objects), "what is missing is asked for"
    assert all(site.push(announced.session_id, reply.objects))
    (came,) = network.replies(key)
    assert came.content["fedpriv"]["body"] == "hello"
    assert not network.replies(key), "a reply is given once"
    site.call.deactivate(node)
    assert not network.broker.presence.is_there(node)
    site.activate()
    site.activate()  # its lease is not over, and nobody has to wait for that
    assert network.broker.presence.is_there(node)


def test_who_did_not_sign_is_no_node(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own authentication, without the one of ours before it."""
    site, other = network.site(), network.site("other")
    node = other.node.node_id
    with pytest.raises(httpx.HTTPStatusError) as caught:
        site.call.pull(node)
    assert caught.value.response.status_code == 401, "a node speaks for itself alone"
    monkeypatch.setattr(Signature, "is_genuine", lambda self: True)
    monkeypatch.setattr(signing, "sign_message", lambda key, text: b"forged")
    with pytest.raises(httpx.HTTPStatusError) as caught:
        site.call.pull(site.node.node_id)
    assert caught.value.response.status_code == 401, "Flower checks signatures too"


# Requests


class Signed(FleetCalls):
    """Sends nothing; keeps the headers of what it would have sent."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", new_key(), httpx.Client())
        self.headers: dict[str, str] = {}

    def exchange(self, request: httpx.Request, call: str) -> httpx.Response:
        self.headers = dict(request.headers)
        return httpx.Response(200, request=request)


def test_a_signature_is_read_as_flower_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = Signed(), signing.now
    calls.deactivate(5)
    signature = Signature.of(calls.headers)
    assert signature.key == calls.public_key, "a key is sent as its PEM"
    assert signature.is_genuine() and signature.is_fresh(), "Flower signs the time of a request"
    assert not replace(signature, time=signature.time.replace("20", "19", 1)).is_genuine()
    for name in (TIMESTAMP_HEADER, FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER):
        with pytest.raises(KeyError):
            Signature.of({key: value for key, value in calls.headers.items() if key != name})
    assert requests.SIGNATURE_LIFE == 310, (
        "docs/how-to/network.md says for how long a signature counts"
    )
    for seconds, is_fresh in ((-302, True), (4, True), (-306, False), (6, False)):
        signed = real() + timedelta(seconds=seconds)
        monkeypatch.setattr(signing, "now", lambda signed=signed: signed)
        calls.deactivate(5)
        assert Signature.of(calls.headers).is_fresh() is is_fresh, seconds


def test_what_is_announced_is_one_reply_that_can_be_read() -> None:
    one = fleet.PushMessagesRequest()
    one.messages_list.add().metadata.message_type = "train"
    one.message_object_trees.add().object_id = "a"
    one.messages_list[0].metadata.message_id = "a"
    one.messages_list[0].content.SetInParent()
    metadata, tree, content = requests.announced(one)
    assert (metadata.message_id, metadata.message_type, tree.object_id) == ("a", "train", "a")
    assert content == b""
    one.messages_list[0].content.CopyFrom(recorddict_to_proto(content_of("hello")))
    _, _, content = requests.announced(one)
    assert messages.whole_content(content)["fedpriv"]["body"] == "hello"
    assert not one.messages_list[0].content.items, "Flower need not read it as well"
    two = fleet.PushMessagesRequest()
    two.CopyFrom(one)
    two.messages_list.add()
    wrong = fleet.PushMessagesRequest()
    wrong.CopyFrom(one)
    wrong.messages_list[0].metadata.message_type = "no type of Flower's"
    for request in (fleet.PushMessagesRequest(), two, wrong):
        with pytest.raises(ProtocolError):
            requests.announced(request)
