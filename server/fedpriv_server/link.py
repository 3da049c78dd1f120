"""Flower's fleet API and link state in this process: all that we use of Flower's own server.

Mounted is the fleet router with node authentication, and nothing else: no Control API, which
has no authentication, and no Runtime API. Nodes are those of the registry; none can register
itself. Everything that leans on Flower's internals on this side is in this file; the tests
hold it to what Flower 1.41 does.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import shutil
import threading
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI, Request, Response
from flwr.app import Error, Message, RecordDict
from flwr.app.message.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import (
    HEARTBEAT_MAX_INTERVAL,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
)
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.responses import JSONResponse

from fedpriv import logs
from fedpriv.errors import ProtocolError
from fedpriv_server.bounds import Bounds
from fedpriv_server.presence import Presence
from fedpriv_server.shape import Room
from fedpriv_server.store import FolderStore
from fedpriv_server.upload import Upload

log = logging.getLogger(__name__)
logs.silence("flwr")  # it would tell of every request
HOLD = 5.0  # seconds that a site's question for messages is held open
TASK_HEARTBEAT = 10.0
LONGEST_NAME = 100  # characters of a message's type, group and ids
REMEMBERED = 256  # messages to a node that it may still confirm
UNREADABLE = 2  # code of an error reply: Flower's for a ClientApp that failed


class Traffic(Protocol):
    """Who wants to hear what nodes do. Called from the server's threads."""

    def arrived(self, node: int) -> None:
        """A node connected, for the first time or anew."""

    def asks(self, node: int) -> None:
        """A node asks for messages."""

    def took(self, node: int, message_id: str) -> None:
        """A message was taken out of a node's mailbox."""

    def confirmed(self, node: int, message_id: str) -> None:
        """A node has all of a message."""

    def stored(self) -> None:
        """Something of a reply was stored."""


class Link:
    """A Flower link state with one run, the nodes that may use it, and the app they talk to.

    The link state is in memory and large objects are files: a job's memory is its checkpoint, and
    after a crash everything is asked again. Flower's SQLite state took 14 ms of a core for a
    request, of which a site makes some fifteen in a round.

    Args:
        folder: for the objects; what is there is removed.

    Attributes:
        presence: who is there.
        traffic: told of what nodes do; set it before the app is served.
    """

    traffic: Traffic

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        self._folder = folder
        self._store = FolderStore(folder)
        self._state = _State(self._store)
        self._factory = LinkStateFactory("", NoOpFederationManager(), ObjectStoreFactory(""))
        self._factory.state_instance = self._state
        self.presence = Presence()
        self._names: dict[int, str] = {}
        self._posted: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._run, self._task = self._start_run()
        self._mailboxes: dict[int, asyncio.Event] = {}
        self._visits: defaultdict[int, int] = defaultdict(int)  # how often each node connected
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        threading.Thread(target=self._keep_run, name="flower-run", daemon=True).start()

    def _start_run(self) -> tuple[int, int]:
        state = self._state
        run = state.create_run(
            None, None, "0" * 64, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        task = state.get_run_info(run_ids=[run])[0].primary_task_id
        assert task is not None
        state.claim_task(task)
        state.activate_task(task)
        # Flower's Message constructor asks the process who it is; its launchers would say it.
        TaskIdentity.run_id, TaskIdentity.task_id = run, task
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        return run, task

    def _keep_run(self) -> None:
        while not self._stopping.wait(TASK_HEARTBEAT):
            self._state.acknowledge_task_heartbeat(self._task)

    def close(self) -> None:
        """Stop keeping the run alive and requests open, before the web server stops."""
        self._stopping.set()

    # Nodes

    @property
    def names(self) -> dict[int, str]:
        """Node → name of its site, of those admitted."""
        return dict(self._names)

    def admit(self, name: str, public_key: bytes) -> int:
        """Let the holder of a key in, for the first time or again; gives the node's id.

        Args:
            public_key: PEM, as Flower's node authentication compares it.
        """
        node = self._state.get_node_id_by_public_key(public_key)
        if node is None:
            node = self._state.create_node(
                NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 0, name=name
            )
        self._names[node] = name
        return node

    def dismiss(self, name: str) -> None:
        """Refuse the site of that name from its next request on."""
        for node in [node for node, known in self._names.items() if known == name]:
            del self._names[node]  # Flower keeps a key that it has deleted, and never takes it back
            self._visits[node] += 1
            self._ring(node)  # a question that is held open is answered with the refusal
            self.presence.forget(node)

    # Messages

    def keep(self, content: RecordDict) -> Kept:
        """Put the content of messages into the store, until it is released.

        What another content holds too, as the vector of a round, is there once.
        """
        with no_object_id_recompute():
            root = content.object_id
            tree = get_object_tree(content)
            missing = set(self._store.preregister(self._run, tree))
            self._store.pin(root)
            for key, item in get_all_nested_objects(content).items():
                if key in missing:
                    self._store.put(key, item.deflate())
        return Kept(root, tree)

    def release(self, kept: Kept) -> None:
        """Let a content go when the last message that carries it is gone."""
        self._store.unpin(kept.root)

    def expect(self, node: int, room: Room) -> Upload:
        """Where the reply of a node to one request will come; to be removed after it was used."""
        return Upload(node, self._folder / f"reply-{secrets.token_hex(8)}", room)

    def post(self, upload: Upload, kept: Kept, kind: str, group: str, ttl: float) -> str | None:
        """Put a message into a node's mailbox; gives its id, or None for a node not admitted.

        Args:
            upload: where the node's reply comes.
        """
        node = upload.node
        message = Message(_Reference(kept.root), node, kind, ttl=ttl, group_id=group)
        key = message.object_id
        message.metadata.__dict__["_message_id"] = key
        if self._state.store_message_ins(remove_content_from_message(message)) is None:
            return None
        tree = ObjectTree(object_id=key, children=[kept.tree])
        self._store.preregister(self._run, tree)
        self._store.put(key, message.deflate())
        self._state.uploads[key] = upload
        self._posted[node].append(key)
        self._ring(node)
        return key

    def _ring(self, node: int) -> None:
        loop, box = self._loop, self._mailboxes.get(node)
        if loop is not None and box is not None:
            loop.call_soon_threadsafe(box.set)

    def replies(self, message_ids: set[str]) -> list[Message]:
        """The replies to messages that came since the last call, content and all to come.

        Each is given once. Its upload knows whether all of its content is there.
        """
        with self._state.lock:
            posted = message_ids & self._state.message_ins_store.keys()
            found = self._state.get_message_res(posted, self._run)
        return [reply for reply in found if reply.metadata.src_node_id != SUPERLINK_NODE_ID]

    def read(self, reply: Message, upload: Upload, reply_to: str) -> Message:
        """A reply with its content, arrays being read one by one when asked for.

        A content that can't be read becomes an error reply.

        Args:
            upload: it has taken that reply.
            reply_to: id of the message that it shall be a reply to.
        """
        metadata = _replying(reply.metadata, reply_to)
        if reply.has_error():
            return make_message(metadata, error=reply.error)
        try:
            content = upload.read()
        except Exception:  # whatever a site may have put together
            return make_message(metadata, error=Error(UNREADABLE, "unreadable"))
        return make_message(metadata, content=content)

    def discard(self, message_ids: set[str]) -> None:
        """Remove messages, and the replies to them but for what was uploaded."""
        for key in message_ids:
            self._store.delete(key)
            self._state.uploads.pop(key, None)
        self._state.delete_messages(message_ids)

    # The app

    def app(self) -> FastAPI:
        """The fleet API, for a web server to serve."""
        app = FastAPI(
            openapi_url=None,  # no description of itself, for whoever asks
            docs_url=None,
            redoc_url=None,
            middleware=[
                Middleware(Bounds, is_known=self._is_known),
                Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
                Middleware(ProtobufTranslationMiddleware),
                Middleware(NodeAuthMiddleware),
                Middleware(BaseHTTPMiddleware, dispatch=self._observe),
            ],
        )
        app.state.linkstate_factory = self._factory
        app.state.enable_supernode_auth = True
        app.include_router(fleet_router)
        return app

    def _is_known(self, public_key: bytes) -> bool:
        return self._state.get_node_id_by_public_key(public_key) in self._names

    async def _observe(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Behind authentication, which looks at paths of the fleet API only."""
        self._loop = asyncio.get_running_loop()
        message = getattr(request.state, "protobuf_request", None)
        if message is None or not request.url.path.startswith("/v1/fleet/"):
            return _refusal(404, "no such thing here")
        match message:
            case ActivateNodeRequest():
                return await self._activate(message, request, call_next)
            case DeactivateNodeRequest():
                self.presence.forget(message.node_id)
                return await call_next(request)
            case PullMessagesRequest():
                return await self._hold(message.node.node_id, request, call_next)
            case PushMessagesRequest():
                try:
                    await run_in_threadpool(self._announce, message)
                except ProtocolError as error:
                    log.warning("Site %s: %s", self._names.get(message.node.node_id), error)
                    return _refusal(400, "no reply looks like that")
            case ConfirmMessageReceivedRequest():
                if message.run_id != self._run:
                    return _refusal(404, "no such run")
                if message.message_object_id not in self._posted.get(message.node.node_id, ()):
                    return _refusal(400, "no message of one's own")
            case PushObjectRequest() | PullObjectRequest():
                if message.run_id != self._run:
                    return _refusal(404, "no such run")
            case _:
                return _refusal(404, "no such thing here")
        node = message.node.node_id
        self.presence.heard(node)
        response = await call_next(request)
        if response.status_code < 400:
            match message:
                case ConfirmMessageReceivedRequest():
                    self.traffic.confirmed(node, message.message_object_id)
                case PushObjectRequest() | PushMessagesRequest():
                    self.traffic.stored()
        return response

    def _announce(self, request: PushMessagesRequest) -> None:
        """Look at a reply before Flower does, and expect its objects."""
        _check_single_reply(request)
        if request.messages_list[0].metadata.run_id != self._run:
            raise ProtocolError("A reply in another run.")
        message_id = request.messages_list[0].metadata.reply_to_message_id
        upload = self._state.uploads.get(message_id)
        if upload is not None and upload.node == request.node.node_id:
            upload.announce(message_id, request.message_object_trees[0])

    async def _activate(
        self, message: ActivateNodeRequest, request: Request, call_next: RequestResponseEndpoint
    ) -> Response:
        def lookup() -> int | None:
            node = self._state.get_node_id_by_public_key(message.public_key)
            if node is not None:
                self._visits[node] += 1
                # Ends the lease of a process that was killed; else its heir has to wait for it.
                self._state.deactivate_node(node)
            return node

        node = await run_in_threadpool(lookup)
        if node is None:
            return _refusal(401, "not admitted")
        response = await call_next(request)
        if response.status_code < 400:
            self.presence.heard(node)
            await run_in_threadpool(self.traffic.arrived, node)
        return response

    async def _hold(
        self, node: int, request: Request, call_next: RequestResponseEndpoint
    ) -> Response:
        """Answer a question for messages when there is one, or after a while."""
        first = node not in self._mailboxes
        box = self._mailboxes.setdefault(node, asyncio.Event())
        if first:
            box.set()  # messages may have come before there was a box

        def asks() -> None:
            self._state.acknowledge_node_heartbeat(node, HEARTBEAT_MAX_INTERVAL)
            self.traffic.asks(node)

        visit = self._visits[node]
        with self.presence.waiting(node):
            await run_in_threadpool(asks)
            await self._rings(box, request)
            if visit != self._visits[node] or await request.is_disconnected():
                # No message is taken out of the box for somebody who is gone.
                return _refusal(499, "gone")
            box.clear()
            response = await call_next(request)
        pulled = getattr(request.state, "protobuf_response", None)
        for proto in getattr(pulled, "messages_list", ()):
            box.set()  # there may be another
            self.traffic.took(node, proto.metadata.message_id)
        return response

    async def _rings(self, box: asyncio.Event, request: Request) -> None:
        """Wait for a message, or long enough, or until the one who asks goes away."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + HOLD
        while not box.is_set() and clock() < deadline and not self._stopping.is_set():
            try:
                await asyncio.wait_for(box.wait(), min(0.5, deadline - clock()))
            except TimeoutError:
                if await request.is_disconnected():
                    return


@dataclass(frozen=True)
class Kept:
    """The content of a message, in the store.

    Attributes:
        root: object id of the content.
        tree: of all its objects.
    """

    root: str
    tree: ObjectTree


class _Reference(RecordDict):
    """A content that is known by its object id alone."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self.__dict__["_root"] = root

    @property
    def object_id(self) -> str:
        return str(self.__dict__["_root"])


class _State(InMemoryLinkState):
    """Flower's, but that what sites send goes into uploads, not among what the server says.

    Attributes:
        uploads: message → where the reply to it comes.
    """

    def __init__(self, store: FolderStore) -> None:
        super().__init__(NoOpFederationManager(), store)
        self.uploads: dict[str, Upload] = {}

    def start_session(self, run_id: int) -> str:
        return secrets.token_hex(16)

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        upload = self.uploads.get(message.metadata.reply_to_message_id)
        if upload is None or self.store_message_res(message) is None:
            return False, []
        upload.session = session_id
        return True, upload.missing()

    def store_object(
        self, run_id: int, session_id: str, object_id: str, object_content: bytes
    ) -> bool:
        uploads = [item for item in list(self.uploads.values()) if item.session == session_id]
        try:
            for upload in uploads[:1]:
                upload.put(object_id, object_content)
        except (ProtocolError, OSError) as error:
            log.warning("An object of a reply was not kept: %s", error)
            return False
        return bool(uploads)


def _refusal(status: int, detail: str) -> JSONResponse:
    """In JSON: Flower's middleware turns an error of any other kind into its own failure."""
    return JSONResponse({"detail": detail}, status_code=status)


def _check_single_reply(request: PushMessagesRequest) -> None:
    """Check that it is one message, from the node that signed for it, of sane metadata.

    Raises:
        ProtocolError: it is not.
    """
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise ProtocolError("Not one reply at a time.")
    metadata = request.messages_list[0].metadata
    if metadata.src_node_id != request.node.node_id or not metadata.reply_to_message_id:
        raise ProtocolError("Not a reply of one's own.")
    if request.message_object_trees[0].object_id != metadata.message_id:
        raise ProtocolError("Not the objects of the reply.")
    if not (math.isfinite(metadata.created_at) and math.isfinite(metadata.ttl)):
        raise ProtocolError("A time that is not finite.")
    texts = metadata.message_id, metadata.reply_to_message_id, metadata.group_id
    if max(map(len, (*texts, metadata.message_type))) > LONGEST_NAME:
        raise ProtocolError(f"A name of more than {LONGEST_NAME} characters.")
    try:
        message_from_proto(request.messages_list[0])
    except Exception as error:  # whatever a site may have put together
        raise ProtocolError(f"A reply that can't be read ({type(error).__name__}).") from None


def _replying(metadata: Metadata, reply_to: str) -> Metadata:
    return Metadata(
        run_id=metadata.run_id,
        message_id=metadata.message_id,
        src_node_id=metadata.src_node_id,
        dst_node_id=metadata.dst_node_id,
        reply_to_message_id=reply_to,
        group_id=metadata.group_id,
        created_at=metadata.created_at,
        ttl=metadata.ttl,
        message_type=metadata.message_type,
    )
