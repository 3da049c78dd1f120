"""A server that does whatever a test wants, at the level of Flower's fleet API."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectResponse,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)

from fedpriv.config.load import load_site
from fedpriv.models.stored import digest_of
from fedpriv.pki.keys import new_key, write_key
from fedpriv_client.init import init_site
from tests.serving.conftest import llama as llama
from tests.serving.conftest import make_site_model as make_site_model

Answer = tuple[int, bytes, dict[str, str]]  # status, content, headers


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 180 MB, which only root can mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=180m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)  # also amid a failure


class FakeServer:
    """Says what it is told to.

    Attributes:
        script: path → a function of a request's headers and content; None for the usual answer.
        asked: paths, in order.
        confirmed: ids of messages.
        replies: trees that were announced.
        stores: whether it keeps what is pushed.
    """

    def __init__(self) -> None:
        self.script: dict[str, Callable[[Any, bytes], Answer | None]] = {}
        self.asked: list[str] = []
        self.confirmed: list[str] = []
        self.replies: list[PushMessagesRequest] = []
        self.stores = True
        self._messages: list[PullMessagesResponse] = []
        self._objects: dict[str, bytes] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                path = self.path.rpartition("/")[2]
                outer.asked.append(path)
                scripted = outer.script.get(path, lambda *_: None)(self.headers, content)
                status, answer, headers = scripted or (200, outer._usual(path, content), {})
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(answer))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def say(self, message: Message) -> str:
        """Send a message, as Flower would."""
        for key, item in get_all_nested_objects(message).items():
            self._objects[key] = item.deflate()
        return self._post(message, get_object_tree(message))

    def say_whole(self, message: Message) -> str:
        """Send a message with its content in it."""
        message.metadata.__dict__["_message_id"] = key = f"whole-{len(self._messages)}"
        self._messages.append(PullMessagesResponse(messages_list=[message_to_proto(message)]))
        return key

    def say_raw(self, message: Message, *contents: bytes) -> str:
        """Send a message of these objects, the first of which is its content."""
        keys = [get_object_id(content) for content in contents]
        root = deflated("Message", [keys[0]], message.deflate().partition(b"\x00")[2])
        self._objects |= dict(zip([*keys, get_object_id(root)], [*contents, root], strict=True))
        message.metadata.__dict__["_message_id"] = get_object_id(root)
        children = [ObjectTree(object_id=key) for key in keys]
        return self._post(message, ObjectTree(object_id=get_object_id(root), children=children))

    def _post(self, message: Message, tree: ObjectTree) -> str:
        found = message_to_proto(remove_content_from_message(message))
        found.metadata.message_id = tree.object_id
        self._messages.append(
            PullMessagesResponse(messages_list=[found], message_object_trees=[tree])
        )
        return str(tree.object_id)

    def _usual(self, path: str, content: bytes) -> bytes:
        answer: Any
        match path:
            case "activate-node":
                answer = ActivateNodeResponse(node_id=5)
            case "pull-messages":
                self.confirmed += PullMessagesRequest.FromString(content).message_ids
                answer = self._messages.pop(0) if self._messages else PullMessagesResponse()
            case "pull-object":
                key = PullObjectRequest.FromString(content).object_id
                answer = PullObjectResponse(
                    object_found=True, object_available=True, object_content=self._objects[key]
                )
            case "push-messages":
                request = PushMessagesRequest.FromString(content)
                self.replies.append(request)
                [tree] = request.message_object_trees
                keys = [item.object_id for item in iterate_object_tree(tree)]
                answer = PushMessagesResponse(objects_to_push=keys)
            case "push-object":
                answer = PushObjectResponse(stored=self.stores)
            case _:
                answer = ConfirmMessageReceivedResponse()
                key = ConfirmMessageReceivedRequest.FromString(content).message_object_id
                self.confirmed.append(key)
        found: bytes = answer.SerializeToString()
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def deflated(kind: str, children: list[str], body: bytes) -> bytes:
    """An object as Flower writes it, whatever is in it."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def asked(body: str = "{}", kind: str = "query", group: str = "1", **more: Any) -> Message:
    """A message from a server."""
    content = RecordDict({"fedpriv": ConfigRecord({"body": body})})
    metadata = Metadata(
        run_id=1,
        message_id="",
        src_node_id=1,
        dst_node_id=5,
        reply_to_message_id="",
        group_id=group,
        created_at=more.pop("created_at", time.time()),
        ttl=more.pop("ttl", 1000.0),
        message_type="query",
    )
    metadata.__dict__["_message_type"] = kind  # whether Flower has such a kind or not
    content.update(more)
    return make_message(metadata, content=content)


@pytest.fixture
def server() -> Iterator[Any]:
    made = FakeServer()
    yield made
    made.close()


@pytest.fixture
def quiet_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command does to SIGTERM would last for all other tests."""
    monkeypatch.setattr("fedpriv.process.stop_on_terminate", lambda: None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A site's file without TLS, with its records, its key and its ledger."""
    path = tmp_path / "site.toml"
    path.write_text(
        f"""
        site = {{ name = "clinic" }}
        server = {{ address = "127.0.0.1:1", key = "site.key", plain = true }}
        [data]
        path = "notes.jsonl"
        columns = {{ text = "note" }}
        max_records_per_unit = 1
        size = 24
        [budget]
        epsilon = 10.0
        per_job = 4.0
        witness = "elsewhere/witness"
        [allow]
        max_trainable = 1_000_000
        model_digest = "{digest_of("embedded")}"
        """
    )
    rows = [json.dumps({"note": f"note {number}"}) for number in range(24)]
    (tmp_path / "notes.jsonl").write_text("\n".join(rows))
    write_key(tmp_path / "site.key", new_key())
    (tmp_path / "elsewhere").mkdir()
    init_site(load_site(path), path)
    return path
