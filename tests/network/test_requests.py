"""What is asked of the server: by whom, once, and nothing but what a site needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import get_object_tree, no_object_id_recompute
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedpriv.config.load import load_site
from fedpriv.errors import AdmissionError, PausedError
from fedpriv.protocol import Refusal
from fedpriv_client import flower
from fedpriv_client.connection import ServerConnection
from fedpriv_client.serve import connection_of, identity
from tests.network.network_federation import Federation
from tests.waiting import wait_until

REFUSED = (401, 404, 413)
PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE}


class Site:
    """A site that a test plays by hand, and what it has sent so far.

    Attributes:
        requests: every signed request, to be sent again.
    """

    def __init__(self, federation: Federation, index: int) -> None:
        file = load_site(federation.site_file(index))
        self.requests: list[httpx.Request] = []
        self.connection: ServerConnection = connection_of(file)
        self.connection._client._client.event_hooks["request"] = [self.requests.append]
        self.node = Node(node_id=self.connection.connect())
        trust, _ = identity(file)
        assert trust is not None
        self.wire = httpx.Client(base_url=f"https://{file.server.address}", verify=trust)

    def last(self, path: str) -> httpx.Request:
        return next(one for one in reversed(self.requests) if one.url.path.endswith(path))

    def again(self, path: str) -> int:
        """Send the last request to a path once more, byte for byte; gives the status."""
        request = self.last(path)
        return self.wire.post(
            request.url, headers=request.headers, content=request.content
        ).status_code

    def post(self, path: str, message: Any) -> int:
        """Send a message that nobody signed; gives the status."""
        return self.wire.post(
            path, headers=PROTOBUF, content=message.SerializeToString()
        ).status_code

    def close(self) -> None:
        self.connection.close()
        self.wire.close()


@pytest.fixture
def site(federation: Federation) -> Iterator[Site]:
    """The first site; the server listens and waits for the second."""
    federation.only(2, needed=1)
    federation.change(federation.file, 'wait = "1h"', 'wait = "1s"')
    federation.server()
    federation.until(state="waiting")
    made = Site(federation, 0)
    yield made
    made.close()


def status_of(call: Callable[[], object]) -> int:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        call()
    return caught.value.response.status_code


def refusing(site: Site, *, of: int | None = None) -> Message:
    """A reply to the next message, in the name of a node."""
    message = None
    while message is None:
        message = site.connection.receive()
    body = Refusal.of(PausedError("")).model_dump_json()
    reply = Message(RecordDict({"fedpriv": ConfigRecord({"body": body})}), reply_to=message)
    if of is not None:
        reply.metadata.__dict__["_src_node_id"] = of
    return reply


def pushed(site: Site, reply: Message) -> PushMessagesRequest:
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        return PushMessagesRequest(
            node=site.node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
        )


def test_what_a_site_does_not_need_is_refused(federation: Federation, site: Site) -> None:
    """By name, size and sender; what nobody signed is not even heard."""
    call = site.connection._client
    key = call.public_key
    for asked in (
        lambda: call.RegisterNode(RegisterNodeFleetRequest(public_key=key)),
        lambda: call.UnregisterNode(UnregisterNodeFleetRequest(node_id=site.node.node_id)),
        lambda: call.GetFab(GetFabRequest(node=site.node, hash_str="0" * 64)),
        lambda: call.GetRun(GetRunRequest(node=site.node)),
        lambda: call.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=site.node)),
    ):
        assert status_of(asked) == 404

    for path in ("/", "/docs", "/openapi.json", "/v1/fleet/", "/v1/fleet/pull-messages"):
        assert site.wire.get(path).status_code in REFUSED, path
        assert site.wire.get(path, headers={"content-length": "0"}).status_code in REFUSED, path
    assert site.post("/v1/fleet/pull-messages", PullMessagesRequest(node=site.node)) in REFUSED
    other = Site(federation, 1)
    node = other.node
    other.close()
    assert site.post("/v1/runtime/push-object", PushObjectRequest(node=node)) in REFUSED
    assert site.post("/v1/control/start-run", PushObjectRequest(node=node)) in REFUSED
    wait_until(lambda: federation.server_status()["sites"]["site-1"]["there"] is False)
    assert status_of(lambda: call.PullMessages(PullMessagesRequest(node=node))) == 401

    def chunks() -> Iterator[bytes]:
        yield b"of no stated length"

    path = "/v1/fleet/push-object"
    assert site.wire.post(path, headers=PROTOBUF, content=chunks()).status_code in REFUSED
    assert site.wire.post(path, headers=PROTOBUF, content=bytes(9 << 20)).status_code in REFUSED


def test_a_reply_is_ones_own_and_alone(federation: Federation, site: Site) -> None:
    call = site.connection._client
    other = Site(federation, 1)
    forged = pushed(site, refusing(site, of=other.node.node_id))
    assert status_of(lambda: call.PushMessages(forged)) == 400
    stolen = pushed(site, refusing(other))  # to what another was asked
    stolen.messages_list[0].metadata.src_node_id = site.node.node_id
    assert not call.PushMessages(stolen).objects_to_push
    assert status_of(lambda: call.PushMessages(PushMessagesRequest(node=site.node))) == 400
    other.close()


@pytest.mark.slow
def test_a_request_counts_once_and_for_a_while(
    federation: Federation, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "WHOLE", 0)  # so that the reply goes object by object
    site.connection.reply(refusing(site))
    for path in ("activate-node", "pull-messages", "push-messages", "push-object"):
        assert site.again(path) == 409, path
    federation.until(problem="0 sites accept the job")
    site.connection.reply(refusing(site))  # asked anew; the copies disturbed no session

    from flwr.supernode import node_auth_http_interceptor as signing

    real = signing.now
    for shift in (-400, 30):
        signed = real() + timedelta(seconds=shift)
        monkeypatch.setattr(signing, "now", lambda signed=signed: signed)
        with pytest.raises(AdmissionError):
            site.connection.receive()
        assert site.again("pull-messages") == 401
    monkeypatch.setattr(signing, "now", real)
    site.connection.connect()
