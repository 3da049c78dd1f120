"""Holds the reply to one request, while it arrives and until it has been used.

It may look only like this: a message, a few records, and arrays of one chunk each.

    Message ── RecordDict ─┬─ ConfigRecord
                           └─ ArrayRecord ── Array ── ArrayChunk

The references are checked against this shape when the reply is announced, before anything is
stored. Each object is checked against the announcement when it arrives. So nothing has to be
walked, joined or repeated later that a site could have made larger than what it sent.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpriv import wire
from fedpriv.errors import ProtocolError
from fedpriv_server.flower import messages
from fedpriv_strategies.messages import BYTES, REPLY

LARGE = 64 << 10  # bytes; an object of this size or larger is kept as a file
SLACK = 1 << 20  # bytes that a reply may have beside its values
RECORDS = 4
LARGEST_WHOLE = 2 * wire.WHOLE  # bytes, with the heads of its records
_SMALL = 64 << 10  # most bytes of an object that only says which others belong together
_KINDS = (
    ({"Message"}, _SMALL),
    ({"RecordDict"}, _SMALL),
    ({"ConfigRecord", "ArrayRecord"}, SLACK),
    ({"Array"}, _SMALL),
    ({"ArrayChunk"}, 4 * wire.BLOCK + 1024),  # with the headers of NumPy's format and of Flower's
)
_ARRAY = 3  # the level of an Array


@dataclass(frozen=True)
class UploadLimits:
    """How large a reply may be.

    Attributes:
        size: most bytes of all its objects together.
        arrays: most arrays.
    """

    size: int = SLACK
    arrays: int = 0

    @classmethod
    def of_reply_to(cls, content: RecordDict) -> UploadLimits:
        """Allow a reply as many values as were sent, in any of the wire's formats.

        Allow further bytes if the message says that its reply may have them.
        """
        arrays = [array for record in content.array_records.values() for array in record.values()]
        stated = content.config_records[REPLY][BYTES] if REPLY in content.config_records else 0
        further = stated if isinstance(stated, int) else 0
        size = SLACK + sum(len(array.data) for array in arrays) + further
        return cls(size, 2 * len(arrays) + -(-further // wire.BLOCK))


@dataclass(frozen=True)
class Place:
    """Where in a reply an object belongs: its depth, and the objects below it."""

    level: int
    children: tuple[str, ...]


def outline(tree: messages.ObjectTree, limits: UploadLimits, whole: int = 0) -> dict[str, Place]:
    """Return object id → place, for each object of a reply.

    Args:
        whole: bytes of the content, if it came with the announcement; then all is one object.

    Raises:
        ProtocolError: the reply has another shape, or is larger than allowed.
    """
    if whole > LARGEST_WHOLE:
        raise ProtocolError(f"A whole reply of {whole} bytes; {LARGEST_WHOLE} are enough.")
    if whole:
        return {tree.object_id: Place(0, ())}
    most = (1, 1, RECORDS, limits.arrays, limits.arrays, 0)
    places: dict[str, Place] = {}
    nodes, level = [tree], 0
    while nodes:
        count = sum(len(node.children) for node in nodes)
        if count > most[level + 1]:
            raise ProtocolError(f"A reply of {count} objects at depth {level + 1}.")
        for node in nodes:
            place = Place(level, tuple(child.object_id for child in node.children))
            if places.setdefault(node.object_id, place) != place:
                raise ProtocolError("An object of a reply is in two places.")
            if level == _ARRAY and len(place.children) != 1:
                raise ProtocolError(f"An array of {len(place.children)} chunks; one is sent.")
        nodes = [child for node in nodes for child in node.children]
        level += 1
    return places


def check(content: bytes, place: Place) -> None:
    """Check that an object has the kind and the references that were announced.

    Raises:
        ProtocolError: it has others, or is larger than any such object.
    """
    kinds, largest = _KINDS[place.level]
    if len(content) > largest:
        raise ProtocolError(f"An object of {len(content)} bytes; {largest} are enough.")
    try:
        kind, children = messages.object_head(content)
    except Exception as error:  # a site may have sent anything
        raise ProtocolError(f"An object can't be read ({type(error).__name__}).") from None
    if kind not in kinds or tuple(children) != place.children:
        raise ProtocolError("An object is not what was announced.")


class Upload:
    """Collects what a site sends for its reply to one request. It is safe to use from any thread.

    It shares nothing with other replies or with the server's own messages, so that no site can get
    in the way of another. It is removed as a whole. Objects that have come also count for the next
    reply to the same request, after the site was asked again.

    Args:
        node: the node that may reply.
        folder: where large objects are kept; it is made when needed.
        limits: how large the reply may be.

    Attributes:
        session: names the upload while objects are sent; only its site knows it.
    """

    def __init__(self, node: int, folder: Path, limits: UploadLimits) -> None:
        self.node = node
        self.session: str | None = None
        self._folder, self._limits = folder, limits
        self._lock = threading.Lock()
        self._replies: dict[str, str] = {}  # message → id of the one reply to it
        self._reply = ""
        self._places: dict[str, Place] = {}
        self._sizes: dict[str, int] = {}  # bytes of each object that has come
        self._small: dict[str, bytes] = {}
        self._is_settled = False

    def announce(self, message_id: str, tree: messages.ObjectTree, content: bytes) -> None:
        """Expect the objects of a reply to a message, or keep a content that came with it.

        Raises:
            ProtocolError: no reply looks like that, or another one was announced already.
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
            ProtocolError: the object is not expected, is not what its name says, or is too large.
            OSError: the disk is full, or fails.
        """
        if messages.object_id_of(content) != key:
            raise ProtocolError("An object does not match its digest.")
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
        """Tell whether a reply is complete. If so, it no longer changes until it is removed."""
        with self._lock:
            if reply == self._reply and self._sizes.keys() == self._places.keys():
                self._is_settled = True
                return True
            return False

    def read(self) -> RecordDict:
        """Return the content of the taken reply. Each array is read only when it is asked for.

        Raises:
            Exception: of any class; the objects are only known to have the right references.
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
        """Remove everything, and accept nothing any more."""
        with self._lock:
            self._is_settled = True
            self._places, self._sizes, self._small = {}, {}, {}
            shutil.rmtree(self._folder, ignore_errors=True)

    def _array(self, key: str) -> Array:
        says = json.loads(messages.object_body(self._get(key), Array))
        if says["arraychunk_ids"] != [0]:  # one chunk named many times would become large
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
    """Arrays of a reply that stay on disk until each is asked for. None is kept in memory.

    Args:
        references: name → object id.
        load: returns the array with an object id.
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
