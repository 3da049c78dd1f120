"""The reply to one request, while it comes and until it was used."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpriv.errors import ProtocolError
from fedpriv_server.flower import messages
from fedpriv_server.flower.state import LARGE
from fedpriv_server.shape import RECORDS, Place, UploadLimits, check, outline


class Upload:
    """What a site sends toward the reply to one request. Safe to use from any thread.

    It shares nothing with other replies or with what the server says, so that nobody can get in
    the way of another, and goes as a whole. What has come of a reply counts for the next one to
    the same request, after the site was asked again.

    Args:
        node: who may reply.
        folder: for what is large; made when needed.
        limits: what the reply may take.

    Attributes:
        session: names the upload while objects are sent, to its site alone.
    """

    def __init__(self, node: int, folder: Path, limits: UploadLimits) -> None:
        self.node = node
        self.session: str | None = None
        self._folder, self._limits = folder, limits
        self._lock = threading.Lock()
        self._replies: dict[str, str] = {}  # message → the one reply to it
        self._reply = ""
        self._places: dict[str, Place] = {}
        self._sizes: dict[str, int] = {}  # of what has come
        self._small: dict[str, bytes] = {}
        self._is_settled = False

    def announce(self, message_id: str, tree: messages.ObjectTree, content: bytes) -> None:
        """Expect the objects of a reply to a message, or keep a content that came at once.

        Raises:
            ProtocolError: no reply looks like that, or another was announced already.
        """
        places = outline(tree, self._limits, len(content))
        with self._lock:
            if self._is_settled:
                return
            reply = tree.object_id
            known = self._replies.setdefault(message_id, reply)
            if known != reply or (reply == self._reply and places != self._places):
                raise ProtocolError("There is one reply to a message, and it is announced once.")
            for key in list(self._sizes):
                if places.get(key) != self._places[key]:
                    self._drop(key)
            self._reply, self._places = reply, places
            if content:
                self._sizes[reply], self._small[reply] = len(content), content

    def missing(self) -> list[str]:
        """Return the ids of the objects that are expected and have not come."""
        with self._lock:
            return [] if self._is_settled else [k for k in self._places if k not in self._sizes]

    def put(self, key: str, content: bytes) -> None:
        """Keep an object.

        Raises:
            ProtocolError: it is not expected, not what its name says, or too large.
            OSError: there is no space.
        """
        if messages.object_id_of(content) != key:
            raise ProtocolError("An object is not what its name says.")
        with self._lock:
            if self._is_settled or key not in self._places:
                raise ProtocolError("An object is not expected.")
            if key in self._sizes:
                return
            if sum(self._sizes.values()) + len(content) > self._limits.size:
                raise ProtocolError(f"A reply of more than {self._limits.size} bytes.")
            check(content, self._places[key])
            self._sizes[key] = len(content)
            if len(content) < LARGE:
                self._small[key] = content
                return
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                (self._folder / key).write_bytes(content)
            except OSError:
                self._drop(key)
                raise

    def take(self, reply: str) -> bool:
        """Tell whether all of a reply is there. If so, it stays as it is until it is removed."""
        with self._lock:
            if reply == self._reply and self._sizes.keys() == self._places.keys():
                self._is_settled = True
                return True
            return False

    def read(self) -> RecordDict:
        """Return the content of the reply taken; its arrays are read one by one when asked for.

        Raises:
            Exception: of any kind; the objects are only known to have the right references.
        """
        if not (inside := self._places[self._reply].children):
            return messages.whole_content(self._get(self._reply))
        (root,) = inside
        names = json.loads(messages.object_body(self._get(root), RecordDict))
        if len(names) > RECORDS:
            raise ProtocolError(f"A reply of {len(names)} records.")
        content = RecordDict()
        for name, key in names.items():
            raw = self._get(key)
            if raw.startswith(ArrayRecord.__qualname__.encode()):
                references = json.loads(messages.object_body(raw, ArrayRecord))
                if not isinstance(references, dict):
                    raise ProtocolError("Arrays without names.")
                content[name] = StoredArrays(references, self._array)
            else:
                content[name] = ConfigRecord.inflate(raw)
        return content

    def remove(self) -> None:
        """Forget everything, and accept nothing any more."""
        with self._lock:
            self._is_settled = True
            self._places, self._sizes, self._small = {}, {}, {}
            shutil.rmtree(self._folder, ignore_errors=True)

    def _array(self, key: str) -> Array:
        says = json.loads(messages.object_body(self._get(key), Array))
        if says["arraychunk_ids"] != [0]:  # the same one many times makes much out of little
            raise ProtocolError("An array of other than one chunk.")
        (chunk,) = self._places[key].children
        return Array(
            dtype=says["dtype"],
            shape=tuple(says["shape"]),
            stype=says["stype"],
            data=messages.object_body(self._get(chunk), messages.ArrayChunk),
        )

    def _get(self, key: str) -> bytes:
        with self._lock:
            if key not in self._sizes:
                raise ProtocolError("An object is missing.")
            small = self._small.get(key)
            return (self._folder / key).read_bytes() if small is None else small

    def _drop(self, key: str) -> None:
        del self._sizes[key]
        if self._small.pop(key, None) is None:
            (self._folder / key).unlink(missing_ok=True)


class StoredArrays(ArrayRecord):
    """Arrays of a reply that stay on disk until each is asked for; none is kept.

    Args:
        references: name → object id.
        load: gives the array of an object id.
    """

    def __init__(self, references: dict[str, str], load: Callable[[str], Array]) -> None:
        super().__init__()
        self._references, self._load = references, load

    def __getitem__(self, name: str) -> Array:
        return self._load(self._references[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._references)

    def __len__(self) -> int:
        return len(self._references)

    def __contains__(self, name: object) -> bool:
        return name in self._references

    keys, values, items = Mapping.keys, Mapping.values, Mapping.items
