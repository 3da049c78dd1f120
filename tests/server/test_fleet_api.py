"""What a site can do to the fleet API: answer what it was asked, and nothing else."""

from __future__ import annotations

import math
import os
import resource
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_id

from fedpriv.errors import ProtocolError
from fedpriv.pki.keys import new_key
from fedpriv.wire import BLOCK, WHOLE, encode
from fedpriv_client.fleet import FleetClient
from fedpriv_server import bounds, connections, grid, long_poll
from fedpriv_server.upload import LARGEST_WHOLE
from fedpriv_strategies.messages import as_blocks
from tests.network.network_by_hand import Network, Reply, Site, content_of
from tests.waiting import CEILING, wait_until


def vector(values: np.ndarray[Any, Any]) -> RecordDict:
    arrays = ArrayRecord({name: Array(block) for name, block in encode(values, "float32")})
    return RecordDict({"fedpriv": ConfigRecord({"body": "{}"}), "arrays": arrays})


def random(size: int) -> RecordDict:
    return vector(np.random.default_rng(0).standard_normal(size, dtype="f4"))


def status(call: Callable[[], object]) -> int:
    with pytest.raises(httpx.HTTPStatusError) as refused:
        call()
    return refused.value.response.status_code


def test_a_reply_arrives_as_it_was_sent(network: Network) -> None:
    site = network.site()
    key = network.ask(site, random(1000))
    answer = random(1000)
    site.send(Reply(site.take(), answer))
    (reply,) = network.replies(key)
    assert reply.metadata.reply_to_message_id == key
    assert reply.content["fedpriv"]["body"] == "{}"
    sent, came = answer["arrays"]["000000"], reply.content["arrays"]["000000"]
    assert (came.data, came.shape, came.dtype) == (sent.data, sent.shape, sent.dtype)
    assert not network.replies(key)


def test_what_is_small_takes_one_request_each_way(network: Network) -> None:
    site = network.site()
    site.pull()
    key = network.ask(site, random(1000))
    answer = site.pull()
    asked = message_from_proto(answer.messages_list[0])
    assert len(asked.content["arrays"]["000000"].data) > 4000
    reply = Reply(asked.metadata, random(1000))
    announced = site.announce(reply, whole=random(1000))
    assert not announced.objects_to_push
    assert site.announce(reply, whole=random(1000)) != announced  # its answer may have been lost
    (came,) = network.replies(key)
    assert came.content["arrays"]["000000"].data == random(1000)["arrays"]["000000"].data
    assert not network.replies(key)


def test_a_question_is_answered_at_once_only_while_messages_wait(network: Network) -> None:
    site = network.site()
    network.ask(site)
    network.ask(site)
    bell = network.broker.questions
    first = site.take_whole()
    assert bell._bells[site.node.node_id].is_set()
    site.take_whole(first)
    assert not bell._bells[site.node.node_id].is_set()


def test_who_asks_for_more_says_what_came(network: Network) -> None:
    site, other = network.site(), network.site("other")
    network.ask(site)
    network.ask(other)
    first, theirs = site.take_whole(), other.take_whole()
    network.ask(site, content_of("second"))
    assert site.take_whole(first, theirs, "../x", "x" * 1000) != first
    assert other.take_whole() != theirs  # nobody else confirms it


def test_a_whole_reply_is_small(network: Network) -> None:
    site = network.site()
    key = network.ask(site, random(100_000))
    reply = Reply(site.take(), content_of())
    assert status(lambda: site.announce(reply, whole=random(LARGEST_WHOLE // 4))) == 400
    assert not network.replies(key)
    before = network.files()
    assert not site.announce(reply, whole=random(WHOLE // 4)).objects_to_push
    assert network.files() == before
    (came,) = network.replies(key)
    assert len(came.content["arrays"]["000000"].data) > WHOLE


def test_a_whole_reply_is_named_by_no_file(network: Network) -> None:
    site = network.site()
    key = network.ask(site)
    reply = Reply(site.take(), content_of())
    reply.message.metadata.message_id = reply.tree.object_id = "../../precious"
    site.announce(reply, whole=random(WHOLE // 4))
    network.end(key)
    assert not (network.folder.parent / "precious").exists()


def test_of_a_whole_reply_no_object_is_taken(network: Network) -> None:
    site = network.site()
    key = network.ask(site)
    reply = Reply(site.take(), content_of("first"))
    session = site.announce(reply, whole=content_of("whole")).session_id
    assert site.push(session, reply.objects)[0] is False
    assert not site.announce(reply).objects_to_push
    (came,) = network.replies(key)
    assert came.content["fedpriv"]["body"] == "whole"


def test_a_request_ends_when_nobody_wants_another_reply(network: Network) -> None:
    """Not only when all replies were read: whoever adds them up may find one that is none."""
    site = network.site()
    asked = Message(random(10), site.node.node_id, "train", group_id="1")
    replies: Any = network.grid.send_and_receive([asked], timeout=30)
    site.send(Reply(site.take(), random(10)))
    next(replies)
    assert network.grid._open
    replies.close()
    assert not network.grid._open


def test_only_ones_own_messages_are_confirmed(network: Network, tmp_path: Path) -> None:
    """A confirmation removes a message; it must not remove anything else."""
    site, other = network.site(), network.site("other")
    network.ask(other, random(100_000))
    theirs = other.pull().messages_list[0].metadata.message_id
    precious = tmp_path / "precious"
    precious.write_text("checkpoint")
    store = network.broker.state.objects.store
    objects = set(store)
    for name in (str(precious), "../precious", theirs, *objects, "", "x" * 1000):
        assert status(lambda name=name: site.confirm(name)) == 400
    assert precious.exists()
    assert set(store) == objects != set()


def test_what_was_sent_can_not_be_taken_back(network: Network) -> None:
    site = network.site()
    key = network.ask(site, random(100_000))
    answer = Reply(site.take(), random(100_000))
    site.send(answer)
    (reply,) = network.replies(key)
    for name in answer.objects:
        assert status(lambda name=name: site.confirm(name)) == 400
    assert len(reply.content["arrays"]["000000"].data) > 400_000


def test_a_reply_is_announced_once(network: Network) -> None:
    site = network.site()
    key = network.ask(site)
    to = site.take()
    answer = Reply(to, content_of("first"))
    site.announce(answer)
    assert status(lambda: site.announce(Reply(to, content_of("second")))) == 400
    assert status(lambda: site.announce(answer, ObjectTree(object_id=answer.tree.object_id))) == 400
    site.send(answer)  # the same again
    (reply,) = network.replies(key)
    assert reply.content["fedpriv"]["body"] == "first"


def test_an_announcement_is_of_one_shape(network: Network) -> None:
    site = network.site()
    network.ask(site)
    answer = Reply(site.take(), content_of())
    deep = ObjectTree(object_id="ab" * 32)
    for _ in range(50):
        deep = ObjectTree(object_id="cd" * 32, children=[deep])
    deep.object_id = answer.tree.object_id
    assert status(lambda: site.announce(answer, deep)) == 400
    assert status(lambda: site.announce(answer, ObjectTree(object_id="ab" * 32))) == 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created_at", math.nan),
        ("created_at", math.inf),
        ("ttl", math.nan),
        ("ttl", -math.inf),
        ("message_type", "x" * 10_000),
        ("group_id", "x" * 10_000),
        ("reply_to_message_id", ""),
    ],
)
def test_what_a_reply_says_of_itself_is_sane(network: Network, field: str, value: object) -> None:
    site = network.site()
    network.ask(site)
    answer = Reply(site.take(), content_of())
    setattr(answer.message.metadata, field, value)
    assert status(lambda: site.announce(answer)) == 400


def test_nothing_is_stored_but_what_was_announced(network: Network) -> None:
    site = network.site()
    network.ask(site, random(100_000))
    answer = Reply(site.take(), random(100_000))
    stray = ArrayChunk(memoryview(os.urandom(100_000))).deflate()
    before = network.files()
    session = site.announce(answer).session_id
    assert site.push(session, {get_object_id(stray): stray}) == [False]
    assert site.push(session, dict.fromkeys(answer.objects, stray)) == [False] * len(answer.objects)
    assert site.push("", answer.objects) == [False] * len(answer.objects)
    assert network.files() == before
    assert all(site.push(session, answer.objects))


def test_a_reply_takes_the_room_of_what_was_asked_and_gives_it_back(network: Network) -> None:
    site = network.site()
    key = network.ask(site, random(1000))  # 4 KB of values, and a reply's slack of 1 MB
    session = site.announce(large := Reply(site.take(), random(BLOCK))).session_id
    stored = dict(zip(large.objects, site.push(session, large.objects), strict=True))
    assert [key for key, is_stored in stored.items() if not is_stored]
    assert network.files() < (1 << 20) + 8000
    network.end(key)
    key = network.ask(site, random(100_000))
    site.send(Reply(site.take(), random(100_000)))
    assert network.files() > 400_000  # what came
    network.end(key)
    assert network.files() == 0


def test_a_chunk_counts_once(network: Network) -> None:
    """4 MB that an array names a thousand times are no array of 4 GB."""
    site = network.site()
    key = network.ask(site, random(BLOCK))
    answer = Reply(site.take(), random(BLOCK))
    honest = b'"arraychunk_ids": [0]'
    assert any(honest in item for item in answer.objects.values())
    site.send(_renamed(answer, honest, b'"arraychunk_ids": [0, 0]'))
    (reply,) = network.replies(key)
    with pytest.raises(ProtocolError):
        list(as_blocks(reply.content["arrays"], BLOCK, "float32").value)


def _renamed(reply: Reply, old: bytes, new: bytes) -> Reply:
    """The reply with other words in its objects, and with the ids that they have then."""
    names: dict[str, str] = {}

    def rename(tree: ObjectTree) -> None:
        content = reply.objects.pop(tree.object_id)
        for child in tree.children:
            rename(child)
            was, now = (name.encode() for name in (child.object_id, names[child.object_id]))
            content = content.replace(was, now)
        if old in content:
            head, _, body = content.partition(b"\x00")
            body = body.replace(old, new)
            head = head.rpartition(b" ")[0] + b" " + str(len(body)).encode()
            content = head + b"\x00" + body
        names[tree.object_id] = get_object_id(content)
        reply.objects[names[tree.object_id]] = content

    def relabel(tree: ObjectTree) -> None:
        for child in tree.children:
            relabel(child)
        tree.object_id = names[tree.object_id]

    rename(reply.tree)
    relabel(reply.tree)
    reply.message.metadata.message_id = reply.tree.object_id
    return reply


def test_what_can_not_be_read_is_an_error_and_not_a_crash(network: Network) -> None:
    site = network.site()
    key = network.ask(site)
    site.send(_renamed(Reply(site.take(), content_of()), b"{", b"["))
    (reply,) = network.replies(key)
    assert reply.has_error()


def test_nobody_stands_in_the_way_of_what_others_are_told(network: Network) -> None:
    """Whoever knows what the server will say to another can't say it first, with other parts."""
    site, other = network.site(), network.site("other")
    told = content_of("what everybody knows")
    network.ask(site)
    answer = Reply(site.take(), told)
    record = answer.tree.children[0].children[0].object_id
    answer.tree.children[0].children[0].children.append(ObjectTree(object_id="ab" * 32))
    assert status(lambda: site.announce(answer)) == 400
    del answer.tree.children[0].children[0].children[:]
    site.announce(answer)  # and never sent
    network.ask(other, told)
    assert record in str(other.pull().message_object_trees[0])


def test_who_confirms_nothing_is_told_again_for_a_while(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "PERIOD", 3600.0)
    site = network.site()
    network.ask(site)
    seen = {message.metadata.message_id for _ in range(9) for message in site.pull().messages_list}
    assert 2 <= len(seen) <= 1 + grid.REPEATS


def test_of_strangers_not_even_the_body_is_read(network: Network) -> None:
    site = network.site()
    network.broker.dismiss("site")
    assert status(site.pull) == 401
    assert status(site.activate) == 401
    site.call.close()
    site.call = FleetClient(f"127.0.0.1:{network.port}", None, new_key())
    assert status(site.pull) == 401
    assert _head_only(network.port, "Content-Length: 1000").startswith(b"HTTP/1.1 401")


def test_a_site_has_a_few_requests_open_and_no_more(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, other = network.site(), network.site("other")
    site.pull()  # a node's first question is answered at once, those after it are held open
    monkeypatch.setattr(long_poll, "HOLD", long_poll.LONGEST_HOLD)

    def asks(_: int) -> int:
        try:
            site.pull()
        except httpx.HTTPStatusError as error:
            return error.response.status_code
        return 200

    with ThreadPoolExecutor(2 * bounds.OPEN) as threads:
        asked = [threads.submit(asks, number) for number in range(2 * bounds.OPEN)]
        for _, refused in zip(range(bounds.OPEN), as_completed(asked), strict=False):
            assert refused.result() == 429
        # As many are held open: let them go.
        ring = partial(network.broker.questions.ring, site.node.node_id)
        wait_until(lambda: ring() or all(one.done() for one in asked))
    assert sorted(one.result() for one in asked) == [200] * bounds.OPEN + [429] * bounds.OPEN
    monkeypatch.setattr(long_poll, "HOLD", 0.2)
    other.pull()
    site.pull()


def test_a_turn_to_move_an_object_begins_with_its_first_byte(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four sites that announce much and send nothing hold nobody up."""
    monkeypatch.setattr(bounds, "PROMPTNESS", CEILING)
    honest = network.site()
    silent = []
    for index in range(bounds.MOVING):
        head = _signed_head(network.site(f"silent-{index}"))
        kept = [line for line in head if not line.startswith("content-length")]
        silent.append(socket.create_connection(("127.0.0.1", network.port)))
        lines = ("POST /v1/fleet/push-object HTTP/1.1", "Host: x", *kept, "content-length: 1000000")
        told = ("Expect: 100-continue", "", "")  # so that the server says when it waits
        silent[-1].sendall("\r\n".join((*lines, *told)).encode())
        assert silent[-1].recv(4096).startswith(b"HTTP/1.1 100")
    key = network.ask(honest, random(100_000))
    honest.send(Reply(honest.take(), random(100_000)))
    assert network.replies(key)
    for connection in silent:
        connection.close()


def test_there_is_one_run(network: Network) -> None:
    site = network.site()
    network.ask(site)
    to = site.take()
    site._run = 7
    assert status(lambda: site.confirm(to.message_id)) == 404
    assert status(lambda: site.push("", {"ab" * 32: b"x"})) == 404
    answer = Reply(to, content_of())
    answer.message.metadata.run_id = 7
    assert status(lambda: site.announce(answer)) == 400


def test_connections_leave_files_for_the_rest(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert files == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    monkeypatch.setattr(connections, "RESERVE", files - 2)
    monkeypatch.setattr(connections, "HEADS", CEILING)
    taken = [socket.create_connection(("127.0.0.1", network.port), CEILING) for _ in range(4)]
    for connection in taken[2:]:
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    for connection in taken[:2]:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 404")
    for connection in taken:
        connection.close()


def test_bodies_and_heads_are_waited_for_a_while(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = _signed_head(network.site())
    monkeypatch.setattr(bounds, "PROMPTNESS", 0.1)
    assert _head_only(network.port, *fresh).startswith(b"HTTP/1.1 408")
    monkeypatch.setattr(connections, "HEADS", 0.1)
    assert _talk(network.port, b"") == b""
    assert _talk(network.port, b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n") == b""


def _signed_head(site: Site) -> list[str]:
    """Headers of a request that was signed and never sent."""

    heads: list[httpx.Request] = []

    def catch(request: httpx.Request) -> None:
        heads.append(request)
        raise InterruptedError

    site.call._client.event_hooks["request"] = [catch]
    with pytest.raises(InterruptedError):
        site.pull()
    return [f"{name}: {value}" for name, value in heads[0].headers.items() if name != "host"]


def _head_only(port: int, *lines: str) -> bytes:
    head = "\r\n".join(("POST /v1/fleet/pull-messages HTTP/1.1", "Host: x", *lines, "", ""))
    return _talk(port, head.encode())


def _talk(port: int, said: bytes) -> bytes:
    """What comes back when the server says something, or hangs up."""
    with socket.create_connection(("127.0.0.1", port), CEILING) as connection:
        connection.sendall(said)
        return connection.recv(4096)


def test_a_question_is_held_until_there_is_a_message(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = network.site()
    assert not site.pull().messages_list
    monkeypatch.setattr(long_poll, "HOLD", CEILING)
    monkeypatch.setattr(long_poll, "LONGEST_HOLD", CEILING)  # longer than the site would wait
    with ThreadPoolExecutor(1) as threads:
        pulled = threads.submit(site.pull)
        wait_until(lambda: network.broker.presence._waiting[site.node.node_id] > 0)
        network.ask(site)
        assert pulled.result().messages_list
