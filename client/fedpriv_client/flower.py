"""All of Flower's internals that a site's side uses. They are used nowhere else.

Flower moves them between minor versions. Before you change the pinned version, read this file and
`tests/client/test_flower.py`, which says what each has to do. Flower's public packages (flwr.app,
flwr.clientapp) may be used anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_MAX_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import message_pb2 as objects
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable import inflatable_object as inflatable
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedpriv.pki.keys import PrivateKey, public_pem
from fedpriv.wire import WHOLE

_CLASSES = (Message, RecordDict, ConfigRecord, ArrayRecord, Array, ArrayChunk)
_KINDS: dict[str, type[inflatable.InflatableObject]] = {
    kind.__qualname__: kind for kind in _CLASSES
}

# Messages, and the objects that they are sent as


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id. Flower lets only its own server do that."""
    message.metadata.__dict__["_message_id"] = message_id


def object_id_of(content: bytes) -> str:
    """Return the id of an object: the SHA-256 of its content, in hex."""
    return inflatable.get_object_id(content)


def object_head(content: bytes) -> tuple[str, list[str]]:
    """Return the kind of an object and the ids that it refers to, as the object states them.

    Raises:
        ValueError: it has no head.
    """
    kind, children, _ = inflatable.get_object_head_values_from_object_content(content)
    return kind, children


def object_body(content: bytes, kind: str) -> bytes:
    """Return the content that follows the head of an object of that kind.

    Raises:
        KeyError: no message has objects of that kind.
        ValueError: the object is of another kind.
    """
    return inflatable.get_object_body(content, _KINDS[kind])


def assemble(key: str, contents: Mapping[str, bytes]) -> object:
    """Assemble an object and those that it refers to, as a message with its content.

    Args:
        contents: objects by id; check their sizes and references first.

    Raises:
        Exception: of any kind.
    """
    return inflate_object_from_contents(key, dict(contents))


@dataclass(frozen=True)
class Outgoing:
    """Hold a reply as it is sent: first its parts are announced, then missing objects are sent."""

    message: Message
    _objects: Mapping[str, inflatable.InflatableObject]

    def content(self, key: str) -> bytes:
        """Return the content of an object, which is made only now."""
        return self._objects[key].deflate()

    def announced(self) -> Message:
        """Return the reply as it is announced, with its content if that is small."""
        is_small = sum(len(one.deflate()) for one in self._objects.values()) <= WHOLE
        return self.message if is_small else remove_content_from_message(self.message)


@contextmanager
def outgoing(message: Message) -> Iterator[Outgoing]:
    """Take a reply apart, and set its id from its content.

    Within the context an object's id is computed once, so the reply must not be changed.
    """
    with inflatable.no_object_id_recompute():
        set_message_id(message, message.object_id)
        yield Outgoing(message, inflatable.get_all_nested_objects(message))


# The fleet API


class Announced:
    """Hold a message that waits for us: its metadata, and its content or its objects' ids."""

    def __init__(self, answer: fleet.PullMessagesResponse) -> None:
        (self._message,) = answer.messages_list
        self.metadata: Metadata = metadata_from_proto(self._message.metadata)
        self.is_whole = bool(self._message.content.items)
        self._trees = answer.message_object_trees

    def whole(self) -> Message:
        """Return the message with the content that came with it.

        Raises:
            Exception: of any kind.
        """
        return message_from_proto(self._message)

    def object_ids(self) -> set[str]:
        """Return the ids of the announced objects. Raises IndexError if the server gave none."""
        return {item.object_id for item in inflatable.iterate_object_tree(self._trees[0])}


class FleetCalls(FleetHttpClient):
    """Make the calls of the fleet API that a site needs, each signed with its key.

    Args:
        url: scheme, host and port.
        transport: sends the requests. The versions that Flower's server asks for are added to
            its headers.
    """

    def __init__(self, url: str, key: PrivateKey, transport: httpx.Client) -> None:
        # Flower's own constructor is not called: it makes a client that follows redirects, and it
        # fails at a proxy of the environment even if that is not needed.
        self._base_url, self._retry_invoker = url, None
        self._interceptors = (NodeAuthHttpInterceptor(key, key.public_key()),)
        versions = RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()
        transport.headers.update(dict(versions))
        self._client = transport
        self.public_key = public_pem(key.public_key())

    def exchange(self, request: httpx.Request, call: str) -> httpx.Response:
        """Send a signed request, and return the whole answer.

        Args:
            call: the name of the call, such as PullObject.
        """
        raise NotImplementedError

    def _send(self, context: ProtobufRequestContext, *, stream: bool = False) -> httpx.Response:
        (signing,) = self._interceptors
        call = context.rpc_method.rpartition("/")[2]
        return signing.intercept(context, lambda signed: self.exchange(signed.request, call))

    def activate(self) -> int:
        """Say who we are, and return the node's id."""
        asked = fleet.ActivateNodeRequest(
            public_key=self.public_key, heartbeat_interval=HEARTBEAT_MAX_INTERVAL
        )
        return int(self.ActivateNode(asked).node_id)

    def deactivate(self, node: int) -> None:
        """Say goodbye."""
        self.DeactivateNode(fleet.DeactivateNodeRequest(node_id=node))

    def pull(self, node: int, came: Iterable[str] = ()) -> Announced | None:
        """Ask for a message. The server waits a while before it answers that there is none.

        Args:
            came: ids of messages that came whole, so that they do not come again.
        """
        answer = self.PullMessages(
            fleet.PullMessagesRequest(node=Node(node_id=node), message_ids=came)
        )
        return Announced(answer) if answer.messages_list else None

    def fetch(self, node: int, run: int, key: str) -> bytes | None:
        """Fetch the content of an object, unchecked; None if the server does not have it."""
        asked = objects.PullObjectRequest(node=Node(node_id=node), run_id=run, object_id=key)
        answer = self.PullObject(asked)
        return answer.object_content if answer.object_available else None

    def confirm(self, node: int, metadata: Metadata) -> None:
        """Confirm that a message has come, so that it does not come again."""
        came = objects.ConfirmMessageReceivedRequest(node=Node(node_id=node))
        came.run_id, came.message_object_id = metadata.run_id, metadata.message_id
        self.ConfirmMessageReceived(came)

    def announce(self, node: int, reply: Outgoing) -> tuple[str, list[str]]:
        """Announce a reply, and return a session and the ids of the objects that are missing."""
        asked = fleet.PushMessagesRequest(
            node=Node(node_id=node),
            messages_list=[message_to_proto(reply.announced())],
            message_object_trees=[inflatable.get_object_tree(reply.message)],
            clientapp_runtime_list=[0.0],  # the real time stays secret
        )
        answer = self.PushMessages(asked)
        return answer.session_id, list(dict.fromkeys(answer.objects_to_push))

    def push(self, node: int, run: int, session: str, key: str, content: bytes) -> bool:
        """Send an object of an announced reply, and return whether the server took it."""
        sent = objects.PushObjectRequest(node=Node(node_id=node), run_id=run, session_id=session)
        sent.object_id, sent.object_content = key, content
        return bool(self.PushObject(sent).stored)
