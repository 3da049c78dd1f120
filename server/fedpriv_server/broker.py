"""The server's end of its sites' connections: which nodes may take part, and their mailboxes.

There is one Flower run and no app. There is no Control API, which has no authentication, and no
Runtime API. The nodes are the sites of `sites.json`. None can register itself.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
from collections import defaultdict, deque
from functools import partial
from pathlib import Path

from flwr.app import Error, Message

from fedpriv import logs
from fedpriv_server.flower.messages import APP_FAILED, replying
from fedpriv_server.flower.state import FleetState, Kept
from fedpriv_server.long_poll import LongPoll, Presence
from fedpriv_server.upload import Upload, UploadLimits

log = logging.getLogger(__name__)
logs.silence("flwr")  # it would log every request
RUN_HEARTBEAT = 10.0  # seconds
REMEMBERED = 256  # newest messages to a node, which it may still confirm


class MessageBroker:
    """Keeps the nodes of a run, the messages to them, and what has come of their replies.

    Flower's state is in memory. What a job remembers is its checkpoint, so after a crash everything
    is asked again. Flower's SQLite state took 14 ms of
    a core for each request.

    Args:
        folder: where replies are kept; what it holds before is removed.

    Attributes:
        state: Flower's state.
        presence: which nodes are connected.
        questions: the nodes' requests for messages, which are held open.
    """

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        self._folder = folder
        refused = partial(log.warning, "An object of a reply was not kept: %s")
        self.state = FleetState(refused)
        self.presence = Presence()
        self.questions = LongPoll()
        self._names: dict[int, str] = {}
        self._posted: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._stopping = threading.Event()
        threading.Thread(target=self._keep_run, name="flower-run", daemon=True).start()

    def _keep_run(self) -> None:
        while not self._stopping.wait(RUN_HEARTBEAT):
            self.state.keep_run()

    def close(self) -> None:
        """Stop keeping the run alive and requests open, before the web server stops."""
        self._stopping.set()
        self.questions.close()

    # Nodes

    @property
    def names(self) -> dict[int, str]:
        """The admitted nodes: node → name of its site."""
        return dict(self._names)

    def admit(self, name: str, public_key: bytes) -> int:
        """Let the holder of a key in, for the first time or again. Return the node's id.

        Args:
            public_key: PEM, as Flower's node authentication compares it.
        """
        node = self.state.node_of(public_key) or self.state.add_node(name, public_key)
        self._names[node] = name
        return node

    def dismiss(self, name: str) -> None:
        """Refuse the site with that name from its next request on."""
        for node in [node for node, known in self._names.items() if known == name]:
            del self._names[node]  # a key deleted in Flower could never be admitted again
            self.questions.supersede(node)
            self.questions.ring(node)  # a request that is held open is answered with the refusal
            self.presence.forget(node)

    def is_admitted(self, public_key: bytes) -> bool:
        """Tell whether the holder of a key (PEM) may take part now."""
        return self.state.node_of(public_key) in self._names

    # Messages

    def expect(self, node: int, limits: UploadLimits) -> Upload:
        """Make the place for a node's reply to one request. Remove it after use."""
        return Upload(node, self._folder / f"reply-{secrets.token_hex(8)}", limits)

    def post(self, upload: Upload, kept: Kept, kind: str, group: str, ttl: float) -> str | None:
        """Put a message into a node's mailbox. Return its id, or None if the node is not admitted.

        Args:
            upload: the place where the node's reply is stored.
        """
        key = self.state.post(upload.node, kept, kind, group, ttl, upload)
        if key is not None:
            self._posted[upload.node].append(key)
            self.questions.ring(upload.node)
        return key

    def was_told(self, node: int, message_id: str) -> bool:
        """Tell whether a message was put into that node's mailbox, not too long ago."""
        return message_id in self._posted.get(node, ())


def read_reply(reply: Message, upload: Upload, reply_to: str) -> Message:
    """Read a reply with its content. Each array is read only when it is asked for.

    If the content can't be read, return an error reply.

    Args:
        upload: the upload that has taken this reply.
        reply_to: id of the message that the returned reply names as answered.
    """
    if reply.has_error():
        return replying(reply, reply_to, error=reply.error)
    try:
        content = upload.read()
    except Exception:  # a site may have sent anything
        return replying(reply, reply_to, error=Error(APP_FAILED, "unreadable"))
    return replying(reply, reply_to, content=content)
