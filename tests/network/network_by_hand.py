"""A broker that listens, and sites that a test plays by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import HEARTBEAT_MAX_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto, recorddict_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedpriv.pki.keys import new_key, public_pem
from fedpriv_client.fleet import FleetClient
from fedpriv_server.broker import MessageBroker, read_reply
from fedpriv_server.grid import NetworkGrid


def content_of(text: str = "{}") -> RecordDict:
    """What a message with a body says."""
    return RecordDict({"fedpriv": ConfigRecord({"body": text})})


class Reply:
    """A reply as a site may send it, whole or not.

    Attributes:
        message: without its content.
        tree: of its objects.
        objects: deflated, by id.
    """

    def __init__(self, to: Metadata, content: RecordDict) -> None:
        message = make_message(
            Metadata(
                run_id=to.run_id,
                message_id="",
                src_node_id=to.dst_node_id,
                dst_node_id=to.src_node_id,
                reply_to_message_id=to.message_id,
                group_id=to.group_id,
                created_at=to.created_at,
                ttl=60.0,
                message_type=to.message_type,
            ),
            content=content,
        )
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            objects = get_all_nested_objects(message)
            self.objects = {key: item.deflate() for key, item in objects.items()}
            self.tree = get_object_tree(message)
            self.message = message_to_proto(remove_content_from_message(message))


class Site:
    """A site of a broker, speaking the fleet API by hand."""

    def __init__(self, broker: MessageBroker, port: int, name: str) -> None:
        key = new_key()
        self.call = FleetClient(f"127.0.0.1:{port}", None, key)
        self._run = broker.state.run
        self.public_key = public_key_to_bytes(key.public_key())
        self.node = Node(node_id=broker.admit(name, public_pem(key.public_key())))
        self.activate()

    def activate(self) -> None:
        self.call.ActivateNode(
            ActivateNodeRequest(
                public_key=self.public_key, heartbeat_interval=HEARTBEAT_MAX_INTERVAL
            )
        )

    def pull(self) -> PullMessagesResponse:
        return self.call.PullMessages(PullMessagesRequest(node=self.node))

    def take(self) -> Metadata:
        """Take the next message; gives what it says of itself."""
        metadata = message_from_proto(self.pull().messages_list[0]).metadata
        self.confirm(metadata.message_id)
        return metadata

    def confirm(self, message_id: str) -> None:
        self.call.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self.node, run_id=self._run, message_object_id=message_id
            )
        )

    def take_whole(self, *came: str) -> str:
        """Say what came and take the next message; gives its id."""
        request = PullMessagesRequest(node=self.node, message_ids=came)
        (message,) = self.call.PullMessages(request).messages_list
        assert message.content.items
        return message.metadata.message_id

    def announce(
        self, reply: Reply, tree: ObjectTree | None = None, whole: RecordDict | None = None
    ) -> PushMessagesResponse:
        """Announce a reply, with a content in place of its objects if there is one."""
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[reply.message],
            message_object_trees=[tree or reply.tree],
        )
        if whole is not None:
            request.messages_list[0].content.CopyFrom(recorddict_to_proto(whole))
        return self.call.PushMessages(request)

    def push(self, session: str, objects: Mapping[str, bytes]) -> list[bool]:
        """Send objects; gives which of them were stored."""
        return [
            self.call.PushObject(
                PushObjectRequest(
                    node=self.node,
                    run_id=self._run,
                    object_id=key,
                    object_content=content,
                    session_id=session,
                )
            ).stored
            for key, content in objects.items()
        ]

    def send(self, reply: Reply) -> None:
        """Announce a reply and send all of it."""
        self.push(self.announce(reply).session_id, reply.objects)


class Network:
    """A grid over a broker that listens on loopback.

    Attributes:
        folder: of the broker; what is in it is on disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "link"
        self.broker = MessageBroker(self.folder)
        self.grid = NetworkGrid(self.broker)
        self.port = 0
        self._sites: list[Site] = []

    def site(self, name: str = "site") -> Site:
        self._sites.append(Site(self.broker, self.port, name))
        return self._sites[-1]

    def close(self) -> None:
        """Hang up, and end the questions that are still open."""
        for site in self._sites:
            site.call.close()
        self.broker.close()

    def ask(self, site: Site, content: RecordDict | None = None, kind: str = "train") -> str:
        """Post a message to a site; gives the request's key."""
        message = Message(content or content_of(), site.node.node_id, kind, group_id="1")
        return self.grid._push(message, timeout=86_400.0).key

    def replies(self, key: str) -> list[Message]:
        """The reply to a request, if all of it is there by now; it is given out once."""
        request = self.grid._open.get(key)
        taken = self.grid._taken({} if request is None else {key: request})
        return [read_reply(reply, one.upload, one.key) for one, reply in taken]

    def end(self, key: str) -> None:
        """Close a request, as the end of its round does."""
        self.grid._close(self.grid._open[key])

    def files(self) -> int:
        """Bytes on disk."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
