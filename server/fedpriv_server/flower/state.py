"""Flower's state: a run, its nodes, the messages to them, and the answers to their requests."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from fastapi import HTTPException
from flwr.app import Message, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import HEARTBEAT_MAX_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet import router as fleet_router
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from starlette.requests import Request

from fedpriv.errors import ProtocolError
from fedpriv.wire import WHOLE
from fedpriv_server.flower.messages import ObjectTree, set_identity, set_message_id
from fedpriv_strategies.messages import content_bytes

_ENDPOINTS = {  # kind of a request → Flower's function that answers it
    kind: getattr(fleet_router, "fleet_" + path.rpartition("/")[2].replace("-", "_"))
    for (_, path), kind in PROTOBUF_REQUEST_TYPES.items()
    if path.startswith("/v1/fleet/")
}


@dataclass(frozen=True)
class Kept:
    """The content of a message, in the store.

    Attributes:
        root: object id of the content.
        tree: the tree of all its objects.
        whole: the content, if it is small enough to travel with the message; else empty.
    """

    root: str
    tree: ObjectTree
    whole: RecordDict


class _Reference(RecordDict):
    """Stands for a content of which only the object id is known."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self.__dict__["_root"] = root

    @property
    def object_id(self) -> str:
        return str(self.__dict__["_root"])


class Incoming(Protocol):
    """Takes in the reply to one request.

    Attributes:
        node: the node that may reply.
        session: names the upload while objects are sent.
    """

    node: int
    session: str | None

    def announce(self, message_id: str, tree: ObjectTree, content: bytes) -> None:
        """Expect the objects of a reply to a message, or keep a content that came with it.

        Raises:
            ProtocolError: what is announced can't be a reply.
        """

    def missing(self) -> list[str]:
        """Return the ids of the objects that have not come."""

    def put(self, key: str, content: bytes) -> None:
        """Keep an object. Raise ProtocolError or OSError if it can't be kept."""


class FleetState(InMemoryLinkState):
    """Holds one Flower run in memory: the nodes that may take part, and the messages to them.

    It is Flower's state, except that what a site sends goes to the `Incoming` that expects it. It
    is not stored among the server's own messages. Also, the work for one node does not grow with
    the number of nodes, as it does in Flower.

    Args:
        refused: called with the reason why an object of a reply was not kept.

    Attributes:
        run: id of the run.
        objects: what the server's own messages consist of.
        expected: message → the place for the reply to it.
        arrived: message → the reply to it, until it is asked for.
        mailboxes: node → the messages that it has not taken out yet.
    """

    def __init__(self, refused: Callable[[Exception], None]) -> None:
        self.objects = InMemoryObjectStore()
        super().__init__(NoOpFederationManager(), self.objects)
        self.expected: dict[str, Incoming] = {}
        self.arrived: dict[str, Message] = {}
        self.mailboxes: defaultdict[int, list[str]] = defaultdict(list)
        self._refused = refused
        factory = SimpleNamespace(state=lambda: self)
        self._app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=factory))
        federation, owner, app = NOOP_FEDERATION_ID, NOOP_FLWR_AID, TaskType.SERVER_APP
        self.run = self.create_run(None, None, "0" * 64, {}, federation, None, owner, app)
        task = self.get_run_info(run_ids=[self.run])[0].primary_task_id
        assert task is not None
        self._task = task
        self.claim_task(task)
        self.activate_task(task)
        set_identity(self.run, task)

    # What Flower calls

    def start_session(self, run_id: int) -> str:
        return secrets.token_hex(16)

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        key = message.metadata.reply_to_message_id
        with self.lock:
            incoming = self.expected.get(key)
            is_new = message.metadata.message_id not in self.message_res_store
            if incoming is None or self.store_message_res(message) is None:
                return False, []
            if is_new:
                self.arrived[key] = message
            incoming.session = session_id
        return True, incoming.missing()

    def store_object(
        self, run_id: int, session_id: str, object_id: str, object_content: bytes
    ) -> bool:
        found = [item for item in list(self.expected.values()) if item.session == session_id]
        try:
            for incoming in found[:1]:
                incoming.put(object_id, object_content)
        except (ProtocolError, OSError) as error:
            self._refused(error)
            return False
        return bool(found)

    def store_message_ins(self, message: Message) -> str | None:
        with self.lock:
            key = super().store_message_ins(message)
            if key is not None:
                self.mailboxes[message.metadata.dst_node_id].append(key)
        return key

    def get_message_ins(
        self, node_id: int, limit: int | None, *, run_id: int | None = None
    ) -> list[Message]:
        with self.lock:
            self._check_stored_messages(set(self.mailboxes[node_id]))  # removes what is too old
            known = map(self.message_ins_store.get, self.mailboxes[node_id])
            there = [message for message in known if message is not None]
            taken = [one for one in there if run_id in (None, one.metadata.run_id)][:limit]
            for message in taken:
                message.metadata.delivered_at = now().isoformat()
            left = (one.metadata for one in there if not one.metadata.delivered_at)
            self.mailboxes[node_id] = [metadata.message_id for metadata in left]
        return taken

    # What the server calls

    def keep_run(self) -> None:
        """Tell Flower that the run goes on. Without this, Flower ends the run after some time."""
        self.acknowledge_task_heartbeat(self._task)

    def node_of(self, public_key: bytes) -> int | None:
        """Return the node that holds a key (PEM), even if it may no longer take part."""
        return self.get_node_id_by_public_key(public_key)

    def add_node(self, name: str, public_key: bytes) -> int:
        """Add a new node. Flower never frees its key for another node."""
        return self.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 0, name=name)

    def end_lease(self, node: int) -> None:
        """Let a node be activated anew. Else the successor of a killed process has to wait."""
        self.deactivate_node(node)

    def heard(self, node: int) -> None:
        """Renew a node's lease for the longest time that Flower allows."""
        self.acknowledge_node_heartbeat(node, HEARTBEAT_MAX_INTERVAL)

    def keep(self, content: RecordDict) -> Kept:
        """Put a content of messages into the store, until it is released.

        An object that several contents share, such as the vector of a round, is stored once.
        """
        store = self.objects
        with no_object_id_recompute():
            root = content.object_id
            tree = get_object_tree(content)
            missing = set(store.preregister(self.run, tree))
            with store.lock_store:
                store.store[root].ref_count += 1
            for key, item in get_all_nested_objects(content).items():
                if key in missing:
                    store.put(key, item.deflate())
        return Kept(root, tree, content if content_bytes(content) <= WHOLE else RecordDict())

    def release(self, kept: Kept) -> None:
        """Let a content go when the last message that carries it is gone."""
        with self.objects.lock_store:
            self.objects.store[kept.root].ref_count -= 1
            self.objects.delete(kept.root)

    def post(
        self, node: int, kept: Kept, kind: str, group: str, ttl: float, incoming: Incoming
    ) -> str | None:
        """Put a message into a node's mailbox. Return its id, or None if the node is not admitted.

        Args:
            incoming: the place for the reply.
        """
        message = Message(_Reference(kept.root), node, kind, ttl=ttl, group_id=group)
        key = message.object_id
        set_message_id(message, key)
        self.objects.preregister(self.run, ObjectTree(object_id=key, children=[kept.tree]))
        self.objects.put(key, message.deflate())
        self.expected[key] = incoming
        # This comes last: a node that asks at this moment takes the message, and needs its objects.
        said = make_message(message.metadata, kept.whole)
        if self.store_message_ins(said) is None:
            self.discard({key})
            return None
        return key

    def replies(self, message_ids: set[str]) -> list[Message]:
        """Return the replies to these messages that came since the last call, without content."""
        with self.lock:
            return [self.arrived.pop(key) for key in message_ids if key in self.arrived]

    def discard(self, message_ids: set[str]) -> None:
        """Remove messages and the replies to them, and expect no more replies."""
        for key in message_ids:
            self.objects.delete(key)
        with self.lock:
            for key in message_ids:
                self.expected.pop(key, None)
                self.arrived.pop(key, None)
                message = self.message_ins_store.get(key)
                if message is not None:
                    mailbox = self.mailboxes[message.metadata.dst_node_id]
                    if key in mailbox:
                        mailbox.remove(key)
            self.delete_messages(message_ids)

    async def read(self, request: Request) -> Any:
        """Read a request to the fleet API, and check that its own node signed it.

        Raises:
            HTTPException: it is no such request, or Flower's authentication says that another
                node signed it.
        """
        try:
            kind, body = PROTOBUF_REQUEST_TYPES["POST", request.scope["path"]], request.body()
            message = kind.FromString(await body)
        except Exception:  # a site may have sent anything
            raise HTTPException(400, "no such request") from None
        request.state.protobuf_request = message
        request.scope["app"] = self._app
        authenticate_node(request)
        del request.state.protobuf_request  # a connection keeps its last request's state
        return message

    def answer(self, request: Any) -> Any:
        """Answer a request as Flower does."""
        return _ENDPOINTS[type(request)](request, self)
