"""What a server may send a site, and what becomes of the rest: an error that has a name."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.supercore.error import ApiErrorCode
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import NetworkError, ProtocolError, UnreachableError
from fedpriv.pki.keys import new_key
from fedpriv_client import connection as connection_module
from fedpriv_client import fleet
from fedpriv_client.connection import ServerConnection
from fedpriv_client.fleet import MIB

from .conftest import Answer, asked, deflated

LARGEST = 2 * MIB


@pytest.fixture
def connection(server: Any) -> Iterator[ServerConnection]:
    made = ServerConnection(server.address, None, new_key(), largest=LARGEST)
    made.connect()
    yield made
    made.close()


def always(*answer: Any) -> Callable[..., Answer]:
    return lambda *_: answer


def test_a_message_arrives_as_it_was_sent(server: Any, connection: ServerConnection) -> None:
    blocks = {"000000": Array(np.ones(9, np.float32)), "000001": Array(np.ones(9, np.float32))}
    key = server.say(asked("hello", kind="train", arrays=ArrayRecord(blocks)))
    message = connection.receive()
    assert message is not None
    assert message.metadata.message_id == key
    assert message.content["fedpriv"]["body"] == "hello"  # type: ignore[index]
    assert message.content["arrays"]["000001"].numpy().tolist() == [1.0] * 9  # type: ignore[index]
    assert server.confirmed == [key]
    assert connection.receive() is None


def test_of_a_message_that_is_not_wanted_nothing_is_fetched(
    server: Any, connection: ServerConnection
) -> None:
    key = server.say(asked())
    assert connection.receive(lambda metadata: metadata.message_type == "train") is None
    assert server.confirmed == [key]
    assert "pull-object" not in server.asked


def test_a_message_that_came_whole_is_confirmed_with_the_next_question(
    server: Any, connection: ServerConnection
) -> None:
    blocks = ArrayRecord({"000000": Array(np.ones(9, np.float32))})
    key = server.say_whole(asked("hello", kind="train", arrays=blocks))
    message = connection.receive()
    assert message is not None
    assert message.metadata.message_id == key
    assert message.content["fedpriv"]["body"] == "hello"  # type: ignore[index]
    assert message.content["arrays"]["000000"].numpy().tolist() == [1.0] * 9  # type: ignore[index]
    assert not server.confirmed
    other = server.say_whole(asked(kind="train"))
    assert connection.receive(lambda metadata: metadata.message_type == "query") is None
    assert server.confirmed == [key]
    assert connection.receive() is connection.receive() is None
    assert server.confirmed == [key, other]
    assert server.asked == ["activate-node"] + 4 * ["pull-messages"]


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.content.items.add(),
        lambda said: said.error.SetInParent(),
    ],
    ids=["no-record", "error"],
)
def test_a_whole_message_of_another_shape_is_refused_and_does_not_come_again(
    server: Any, connection: ServerConnection, change: Callable[[Any], object]
) -> None:
    key = server.say_whole(asked())
    change(server._messages[0].messages_list[0])
    with pytest.raises(ProtocolError):
        connection.receive()
    assert connection.receive() is None
    assert server.confirmed == [key]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["activate-node", "pull-messages", "push-messages"])
@pytest.mark.parametrize(
    "answer",
    [
        (200, b"not gzip", {"Content-Encoding": "gzip"}),
        (200, gzip.compress(bytes(MIB)), {"Content-Encoding": "gzip"}),
        (200, bytes(MIB + 1), {}),
        (200, b"\xff" * 9, {}),
        (503, b"later", {}),
        (307, b"", {"Location": "http://127.0.0.1:1/"}),
        (
            400,
            json.dumps({"code": int(ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE), "x": ""}).encode(),
            {},
        ),
    ],
    ids=["bad-gzip", "gzip", "long", "no-protobuf", "503", "redirect", "version"],
)
def test_answers_of_no_use_are_errors_with_a_name(
    server: Any, connection: ServerConnection, path: str, answer: Answer
) -> None:
    server.say(asked())
    message = connection.receive()
    assert message is not None
    server.script[path] = always(*answer)
    calls = {
        "activate-node": connection.connect,
        "pull-messages": connection.receive,
        "push-messages": lambda: connection.reply(Message(RecordDict(), reply_to=message)),
    }
    with pytest.raises(NetworkError):
        calls[path]()


def test_no_answer_is_packed_and_none_is_asked_for_packed(
    server: Any, connection: ServerConnection
) -> None:
    seen = []
    server.script["pull-messages"] = lambda headers, _: seen.append(headers["accept-encoding"])
    connection.receive()
    assert seen == ["identity"]


def test_a_reply_that_is_not_stored_is_not_sent(server: Any, connection: ServerConnection) -> None:
    server.say(asked())
    message = connection.receive()
    assert message is not None
    server.stores = False
    with pytest.raises(NetworkError, match="did not accept"):
        connection.reply(Message(RecordDict(), reply_to=message))
    server.stores = True
    connection.reply(Message(RecordDict(), reply_to=message))


def array(chunk: bytes, pieces: str = "[0]") -> tuple[bytes, bytes]:
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    whole = deflated("ArrayChunk", [], chunk)
    body = '{"dtype": "f", "shape": [1], "stype": "n", "arraychunk_ids": ' + pieces + "}"
    return deflated("Array", [get_object_id(whole)], body.encode()), whole


def nested(pieces: str = "[0]", names: int = 1, chunk: int = 9) -> list[bytes]:
    """A content whose one array is in an unusual number of pieces, or under many names."""
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    made, whole = array(bytes(chunk), pieces)
    key = get_object_id(made)
    refs = json.dumps({str(i): key for i in range(names)}).encode()
    record = deflated("ArrayRecord", [key], refs)
    root = deflated(
        "RecordDict",
        [get_object_id(record)],
        json.dumps({"arrays": get_object_id(record)}).encode(),
    )
    return [root, record, made, whole]


def test_the_shape_that_is_refused_below_is_else_taken(
    server: Any, connection: ServerConnection
) -> None:
    server.say_raw(asked(kind="train"), *nested())
    message = connection.receive()
    assert message is not None
    assert message.content["arrays"]["0"].data == bytes(9)  # type: ignore[index]


@pytest.mark.parametrize(
    "contents",
    [
        nested(pieces="[0, 0]"),
        nested(pieces="[]"),
        nested(names=300, chunk=LARGEST // 256),
        nested(chunk=LARGEST),
        nested()[:-1],
        [deflated("RecordDict", [], b"[]")],
        [deflated("RecordDict", [], b"{")],
        [deflated("MetricRecord", [], b"")],
        [b"no divider"],
        [b"RecordDict  x\x00{}"],
        [bytes(LARGEST // 2), bytes(LARGEST // 2 + 1)],
    ],
    ids=[
        "twice-a-piece", "no-piece", "one-array-300-times", "large", "incomplete", "a-list",
        "no-json", "metrics", "no-head", "no-length", "large-in-all",
    ],
)  # fmt: skip
def test_contents_of_another_shape_or_size_are_refused_and_do_not_come_again(
    server: Any, connection: ServerConnection, contents: list[bytes]
) -> None:
    key = server.say_raw(asked(kind="train"), *contents)
    with pytest.raises(ProtocolError):
        connection.receive()
    assert server.confirmed == [key]
    assert connection.receive() is None


def test_only_a_request_for_a_step_and_an_adapter_may_be_large(
    server: Any, connection: ServerConnection
) -> None:
    server.say(asked("x" * (MIB // 2), kind="query"))
    assert connection.receive() is not None
    large = ArrayRecord({"a": Array(np.zeros(MIB // 4, np.float32))})
    for kind in ("train", "query.adapter"):
        server.say(asked(kind=kind, arrays=large))
        assert connection.receive() is not None
    for kind in ("query", "query.report"):
        server.say(asked(kind=kind, arrays=large))
        with pytest.raises(ProtocolError, match="more than"):
            connection.receive()


def test_a_message_without_its_tree_is_not_one(server: Any, connection: ServerConnection) -> None:
    answer = PullMessagesResponse()
    answer.messages_list.add().metadata.message_type = "query"
    server.script["pull-messages"] = always(200, answer.SerializeToString(), {})
    with pytest.raises(UnreachableError, match="not as a fedpriv server"):
        connection.receive()


@given(st.recursive(st.binary(max_size=40), lambda inner: inner.map(lambda b: b + b"\x00" + b)))
def test_no_bytes_get_out_of_an_envelope_but_as_a_protocol_error(content: bytes) -> None:
    from fedpriv_client.envelope import unpack

    for whole in (content, b"Message  0\x00" + content, b"RecordDict  0\x00" + content):
        with pytest.raises(ProtocolError):
            unpack("key", {"key": whole}, 1000)


def test_no_server_keeps_a_site_from_ending(
    server: Any, connection: ServerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "GOODBYE", 0.2)
    done, waited = Event(), list[bool]()
    server.script["deactivate-node"] = lambda *_: waited.append(done.wait(20))
    connection.close()
    assert not waited  # the server is still at it
    done.set()


def test_an_answer_that_trickles_is_none(
    server: Any, connection: ServerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "TIMEOUT", -1.0)
    monkeypatch.setattr(fleet, "SLOWEST", 1e9)
    server.say(asked())
    with pytest.raises(UnreachableError, match="too slowly"):
        connection.receive()


def test_an_answer_in_crumbs_is_none(
    server: Any, connection: ServerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading each costs time that a step may need."""
    monkeypatch.setattr(fleet, "PARTS", 0)
    monkeypatch.setattr(fleet, "SMALLEST", 1 << 20)
    chunks = b"1\r\na\r\n" * 9 + b"0\r\n\r\n"
    server.script["pull-messages"] = always(200, chunks, {"Transfer-Encoding": "chunked"})
    with pytest.raises(UnreachableError, match="pieces that are too small"):
        connection.receive()


def test_plain_http_goes_to_no_proxy(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.path)
            self.send_error(502)

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    Thread(target=proxy.serve_forever, args=(0.02,), daemon=True).start()
    for name in [name for name in os.environ if name.lower() == "no_proxy"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    connection = ServerConnection(server.address, None, new_key())
    assert connection.connect() == 5
    connection.close()
    proxy.shutdown()
    assert not seen


def test_a_date_that_is_none_tells_nothing_of_the_clock() -> None:
    answer = httpx.Response(401, headers={"Date": "Mon, 1 Jan 99999999999999 00:00:00 GMT"})
    assert connection_module._ahead(answer) is None
