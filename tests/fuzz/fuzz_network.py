"""What comes over the network: replies to a server, messages to a site, requests of anybody."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import recorddict_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from google.protobuf import json_format
from google.protobuf.message import Message as Proto

from fedpriv.errors import FedprivError
from fedpriv.names import Wire
from fedpriv.pki.keys import public_pem
from fedpriv.protocol import (
    Body,
    Handover,
    Offer,
    Proposal,
    Refusal,
    ReportRequest,
    StepReply,
    StepRequest,
)
from fedpriv.wire import encode
from fedpriv_client.app import _body, _change, _vector
from fedpriv_client.connection import ServerConnection
from fedpriv_client.fleet import MIB, FleetClient
from fedpriv_client.mailbox import Mailbox
from fedpriv_server import bounds, long_poll
from fedpriv_server.broker import MessageBroker, read_reply
from fedpriv_server.fleet_api import fleet_api, single_reply
from fedpriv_server.grid import NetworkGrid
from fedpriv_server.upload import SLACK, Upload, UploadLimits
from fedpriv_strategies.messages import answer_of, as_blocks, as_text, body_bytes, payload_bytes
from tests.fuzz.fuzz_messages import HANDOVER, OFFER, PROPOSAL, REPLY, REQUEST, VECTOR, changes
from tests.fuzz.fuzz_mutate import VALUES, json_bytes, mutate_bytes, mutate_tree
from tests.fuzz.fuzz_objects import mutate_nodes, nodes_of, objects_of
from tests.fuzz.fuzz_target import Target, packed, parts, raw, refuses

# Of a case that says no message: protobuf raises SystemError for a name that is not in UTF-8.
NO_MESSAGE = (json_format.ParseError, OverflowError, RecursionError, SystemError)
KEY = ec.derive_private_key(13, ec.SECP256R1())  # guards nothing
PUBLIC_KEY = public_key_to_bytes(KEY.public_key())
TO = Metadata(
    run_id=1,
    message_id="",
    src_node_id=2,
    dst_node_id=1,
    reply_to_message_id="m" * 64,
    group_id="1",
    created_at=1.0,
    ttl=60.0,
    message_type="train",
)


def of(kind: str, body: Body, **records: ArrayRecord) -> Message:
    """A message as it is sent, either way."""
    metadata = Metadata(**{**_fields(TO), "message_type": kind})
    content = RecordDict({"fedpriv": ConfigRecord({"body": body.model_dump_json()}), **records})
    return make_message(metadata, content=content)


def _fields(metadata: Metadata) -> dict[str, Any]:
    names = (
        "run_id",
        "message_id",
        "src_node_id",
        "dst_node_id",
        "reply_to_message_id",
        "group_id",
    )
    return {name: getattr(metadata, name) for name in (*names, "created_at", "ttl", "message_type")}


def arrays(wire: Wire, vector: Any = VECTOR) -> ArrayRecord:
    return ArrayRecord({name: Array(block) for name, block in encode(vector, wire)})


def reply(data: bytes, folder: Path) -> None:
    """What a site sends toward the reply to a request: announced, sent, taken, read, used."""
    found = parts(data, nodes=[], metadata={}, content={})
    objects = objects_of(found["nodes"])
    request = PushMessagesRequest()
    with suppress(*NO_MESSAGE):
        said = {"metadata": found["metadata"], "content": found["content"]}
        shown = {"node": {"nodeId": "2"}, "messagesList": [said]}
        json_format.ParseDict(shown, request)
    if request.messages_list:
        request.messages_list[0].metadata.message_id = objects.root
    request.message_object_trees.append(objects.tree)
    *_, content = single_reply(request)
    upload = Upload(2, folder / "reply", UploadLimits(SLACK + 4 * VECTOR.size, 4))
    upload.announce("m" * 64, request.message_object_trees[0], content)
    for key, content in objects.contents.items():
        if key in upload.missing():
            upload.put(key, content)
    if not upload.take(objects.root):
        return
    sent = make_message(
        Metadata(**{**_fields(TO), "message_id": objects.root}), content=RecordDict()
    )
    read = read_reply(sent, upload, "m" * 64)
    try:
        _use(read)
    finally:
        upload.remove()


def _use(read: Message) -> None:
    """As a strategy does, with answers of every kind and vectors in every format."""
    body_bytes(read)
    _any_of(*(partial(answer_of, read, kind) for kind in (Offer, StepReply)))
    record = None if read.has_error() else read.content.array_records.get("arrays")
    if record is not None:
        _any_of(*(partial(_decode, record, wire) for wire in get_args(Wire)))


def _decode(record: Any, wire: Wire) -> None:
    vector = as_blocks(record, VECTOR.size, wire).value.vector()
    refuses(vector.shape == VECTOR.shape and bool(np.isfinite(vector).all()), "no vector")


def whole_of(message: Message) -> Any:
    """The content of a message that is sent whole, as JSON."""
    return json_format.MessageToDict(recorddict_to_proto(message.content))


def _any_of(*reads: Callable[[], object]) -> None:
    """Call all; refused is what all refuse."""
    problems = []
    for read in reads:
        try:
            read()
        except FedprivError as error:
            problems.append(error)
    if len(problems) == len(reads):
        raise problems[-1]


def replies() -> dict[str, bytes]:
    metadata = {
        "runId": "1",
        "srcNodeId": "2",
        "dstNodeId": "1",
        "replyToMessageId": "m" * 64,
        "groupId": "1",
        "ttl": 60.0,
        "messageType": "train",
        "createdAt": 1.0,
    }
    messages = {
        "offer": of("query", OFFER),
        "refusal": of("train", Refusal(refused="budget", kind="BudgetError")),
        **{f"step-{wire}": of("train", REPLY, arrays=arrays(wire)) for wire in get_args(Wire)},
    }
    whole = {"whole": packed(nodes=[], metadata=metadata, content=whole_of(messages["step-int8"]))}
    return whole | {
        name: packed(nodes=nodes_of(message), metadata=metadata)
        for name, message in messages.items()
    }


def mutate_objects(data: bytes, random: Random) -> bytes:
    """Mostly an object, seldom what is said of the message."""
    if random.random() < 0.05:
        return mutate_bytes(data, random)
    try:
        tree = json.loads(data)
        if random.random() < 0.1:
            tree = mutate_tree(tree, random)
        else:
            tree["nodes"] = mutate_nodes(tree["nodes"], random)
        return json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return mutate_bytes(data, random)


class FakeFleet(FleetClient):
    """Answers a site's questions as a server may."""

    def __init__(self, pulled: bytes, contents: dict[str, bytes]) -> None:
        self._pulled, self._contents = pulled, contents

    def PullMessages(self, _: Any) -> PullMessagesResponse:  # noqa: N802
        return PullMessagesResponse.FromString(self._pulled)

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        content = self._contents.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None,
            object_available=content is not None,
            object_content=content or b"",
        )

    def ConfirmMessageReceived(self, _: Any) -> None:  # noqa: N802
        """Nothing to say."""


@cache
def site_connection() -> ServerConnection:
    made = ServerConnection("127.0.0.1:1", None, KEY, largest=2 * MIB)
    made._node = 2
    return made


def asked(data: bytes, folder: Path) -> None:
    """A message to a site: asked for, fetched, unpacked, and read as its handlers read it."""
    found = parts(data, nodes=[], metadata={}, pulled="", content={})
    objects = objects_of(found["nodes"])
    pulled = PullMessagesResponse()
    with suppress(*NO_MESSAGE):
        said = {"metadata": found["metadata"], "content": found["content"]}
        json_format.ParseDict({"messagesList": [said]}, pulled)
    if pulled.messages_list:
        pulled.messages_list[0].metadata.message_id = objects.root
    pulled.message_object_trees.append(objects.tree)
    connection = site_connection()
    connection._stored = {}
    connection._client = FakeFleet(
        raw(found["pulled"]) or pulled.SerializeToString(), objects.contents
    )
    mailbox = Mailbox()
    message = connection.receive(mailbox.wants)
    if message is None:
        return
    mailbox.put(message)
    payload_bytes([message])
    bodies: tuple[type[Body], ...] = (Proposal, StepRequest, ReportRequest, Handover)
    _any_of(*(partial(lambda kind: kind.parse(_body(message)), kind) for kind in bodies))
    if message.metadata.message_type in ("train", "query.adapter"):
        vector = _vector(message, MIB)
        refuses(bool(np.isfinite(vector).all()) and 0 < vector.size <= MIB, "no vector")
        _change(message)


def messages() -> dict[str, bytes]:
    metadata = {
        "runId": "1",
        "srcNodeId": "1",
        "dstNodeId": "2",
        "groupId": "1",
        "ttl": 60.0,
        "createdAt": 1.0,
    }
    text = as_text(json.dumps(json.loads(changes()["two"])["change"]))
    step = of("train", REQUEST, arrays=arrays("float32"), synthetic=text)
    kinds = {"train": step, "query": of("query", PROPOSAL)}
    kinds["query.report"] = of("query.report", ReportRequest(job_id="job-1"))
    kinds["query.adapter"] = of("query.adapter", HANDOVER, arrays=arrays("float32"))
    metadata["messageType"] = "train"
    return {"whole": packed(nodes=[], metadata=metadata, content=whole_of(step))} | {
        kind: packed(nodes=nodes_of(message), metadata={**metadata, "messageType": kind})
        for kind, message in kinds.items()
    }


REQUESTS: dict[str, type[Proto]] = {
    "activate-node": ActivateNodeRequest,
    "deactivate-node": DeactivateNodeRequest,
    "pull-messages": PullMessagesRequest,
    "push-messages": PushMessagesRequest,
    "pull-object": PullObjectRequest,
    "push-object": PushObjectRequest,
    "confirm-message-received": ConfirmMessageReceivedRequest,
}


@dataclass
class Service:
    """A server without a network: its app, a site that it knows, and a loop to run it in."""

    broker: MessageBroker
    grid: NetworkGrid
    app: Callable[..., Any]
    node: int
    loop: asyncio.AbstractEventLoop
    folder: tempfile.TemporaryDirectory[str]
    errors: list[str]


class _Errors(logging.Handler):
    """Keeps what Flower logs of exceptions that it did not expect."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())


@contextmanager
def quickly(errors: list[str]) -> Iterator[None]:
    """No question is held open, and no garbage is collected; Flower's errors are kept."""
    before, handler = (long_poll.HOLD, bounds.COLLECT), _Errors(errors)
    long_poll.HOLD, bounds.COLLECT = 0.0, 1 << 30
    logging.getLogger("flwr").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("flwr").removeHandler(handler)
        long_poll.HOLD, bounds.COLLECT = before


@cache
def service() -> Service:
    folder = tempfile.TemporaryDirectory(prefix="fuzz-broker-")
    broker = MessageBroker(Path(folder.name) / "link")
    grid = NetworkGrid(broker)
    node = broker.admit("cardiology", public_pem(KEY.public_key()))
    return Service(broker, grid, fleet_api(grid), node, asyncio.new_event_loop(), folder, [])


def activate(served: Service) -> None:
    """Let the site be there, whatever became of it."""
    request = ActivateNodeRequest(public_key=PUBLIC_KEY, heartbeat_interval=60)
    _send(served, "activate-node", request.SerializeToString(), {})


def http(data: bytes, folder: Path) -> None:
    """Requests of one who is known, or of anybody, one after the other."""
    with quickly(service().errors):
        _requests(data)


def _requests(data: bytes) -> None:
    found = parts(data, requests=[], nodes=[])
    served = service()
    activate(served)
    content = RecordDict({"fedpriv": ConfigRecord({"body": "{}"}), "arrays": arrays("float32")})
    message = Message(content, served.node, "train", group_id="1")
    key = served.grid._push(message, timeout=86_400.0).key
    try:
        (posted,) = served.grid._open[key].posted
        texts = {"message": posted, "node": str(served.node), "run": str(served.broker.state.run)}
        objects = objects_of(found["nodes"], **texts)
        texts |= {"root": objects.root, "session": "x"}
        listed = found["requests"] if isinstance(found["requests"], list) else []
        for request in listed[:20]:
            shown = request if isinstance(request, dict) else {}
            upload = served.grid._open[key].upload
            texts["session"] = upload.session or "x"
            if shown.get("objects"):
                for one, stored in objects.contents.items():
                    body = PushObjectRequest(
                        run_id=served.broker.state.run,
                        object_id=one,
                        object_content=stored,
                        session_id=texts["session"],
                    )
                    body.node.node_id = served.node
                    _send(served, "push-object", body.SerializeToString(), shown)
                continue
            path = str(shown.get("path", ""))
            _send(served, path, _body_of(path, shown.get("body"), objects, texts), shown)
        for request, came in served.grid._taken({key: served.grid._open[key]}):
            answer = read_reply(came, request.upload, key)
            with suppress(FedprivError):
                _use(answer)
    finally:
        if key in served.grid._open:
            served.grid._close(served.grid._open[key])


def _body_of(path: str, body: Any, objects: Any, texts: dict[str, str]) -> bytes:
    if isinstance(body, str):
        return raw(body)
    text = json.dumps(body)
    for name, value in texts.items():
        text = text.replace(f"<{name}>", value)
    made = REQUESTS.get(path, PushMessagesRequest)()
    with suppress(*NO_MESSAGE):
        json_format.Parse(text, made)
    if isinstance(made, PushMessagesRequest) and not made.message_object_trees:
        made.message_object_trees.append(objects.tree)
    if isinstance(made, ActivateNodeRequest):
        made.public_key = PUBLIC_KEY
    return made.SerializeToString()


def _send(served: Service, path: str, body: bytes, shown: dict[str, Any]) -> None:
    timestamp = now().isoformat()
    signature = sign_message(KEY, timestamp.encode("ascii"))
    headers: dict[str, Any] = {
        "content-length": str(len(body)),
        "content-type": PROTOBUF_MEDIA_TYPE,
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(PUBLIC_KEY).decode(),
        TIMESTAMP_HEADER: timestamp,
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(signature).decode(),
        **dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()),
    }
    changed = shown.get("headers")
    headers |= changed if isinstance(changed, dict) else {}
    method = str(shown.get("method", "POST"))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path if path.startswith("/") else f"/v1/fleet/{path}",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(raw(name).lower(), raw(value)) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
    }
    served.errors.clear()
    status = served.loop.run_until_complete(_asked_once(served.app, scope, body))
    refuses(status is not None and (status < 500 or status == 499), f"{served.errors or status}")


async def _asked_once(app: Callable[..., Any], scope: dict[str, Any], body: bytes) -> int | None:
    events = [{"type": "http.request", "body": body, "more_body": False}]
    status: list[int] = []
    over = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            status.append(event["status"])

    try:
        await app(scope, receive, send)
    finally:
        over.set()
    return status[0] if status else None


def https() -> dict[str, bytes]:
    """A whole round of a site, and requests that are refused."""
    node = {"nodeId": "<node>"}
    metadata = {
        "runId": "<run>",
        "messageId": "<root>",
        "srcNodeId": "<node>",
        "dstNodeId": "1",
        "replyToMessageId": "<message>",
        "groupId": "1",
        "ttl": 60.0,
        "messageType": "train",
        "createdAt": 1.0,
    }
    push = {
        "node": node,
        "messagesList": [{"metadata": metadata, "content": {}}],
        "clientappRuntimeList": [0.0],
    }
    whole = [
        {"path": "activate-node", "body": {"heartbeatInterval": 60}},
        {"path": "pull-messages", "body": {"node": node}},
        {"path": "pull-object", "body": {"node": node, "runId": "<run>", "objectId": "<message>"}},
        {
            "path": "confirm-message-received",
            "body": {"node": node, "runId": "<run>", "messageObjectId": "<message>"},
        },
        {"path": "push-messages", "body": push},
        {"objects": True},
        {"path": "deactivate-node", "body": {"nodeId": "<node>"}},
    ]
    said = {"metadata": metadata, "content": whole_of(of("train", REPLY, arrays=arrays("int8")))}
    at_once = [
        {"path": "pull-messages", "body": {"node": node, "messageIds": ["<message>"]}},
        {"path": "push-messages", "body": {**push, "messagesList": [said]}},
    ]
    names = (FLEET_HTTP_PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
    stranger = [
        {"path": "pull-messages", "body": {"node": node}, "headers": {name: ""}} for name in names
    ]
    return {
        "round": packed(requests=whole, nodes=nodes_of(of("train", REPLY, arrays=arrays("int8")))),
        "whole": packed(requests=at_once, nodes=nodes_of(of("train", REPLY))),
        "push": packed(requests=whole[4:6], nodes=nodes_of(of("train", REPLY))),
        "stranger": packed(requests=stranger, nodes=[]),
    }


HEADERS = ("content-length", "content-type", "host", TIMESTAMP_HEADER, FLEET_HTTP_PUBLIC_KEY_HEADER)


def mutate_http(data: bytes, random: Random) -> bytes:
    """A request, a header of one, or an object."""
    try:
        tree = json.loads(data)
        level = random.random()
        if level < 0.3:
            tree["nodes"] = mutate_nodes(tree["nodes"], random)
        elif level < 0.5:
            one = random.choice(tree["requests"])
            header = random.choice((*HEADERS, FLEET_HTTP_SIGNATURE_HEADER, "x"))
            one["headers"] = {header: random.choice((*VALUES, "0001-01-01T00:00:00", "٣", "1e3"))}
        elif level < 0.6:
            one = random.choice(tree["requests"])
            one["body"] = mutate_bytes(raw(one.get("body", "")), random).decode("latin-1")
        else:
            tree["requests"] = mutate_tree(tree["requests"], random)
        return json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return json_bytes(data, random)


TARGETS = (
    Target("reply", reply, replies, mutate_objects, 2.0),
    Target("asked", asked, messages, mutate_objects, 2.0),
    Target("http", http, https, mutate_http, 0.1),
)
