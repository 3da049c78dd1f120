"""What a reply may look like: a message, a few records, and arrays of one chunk each.

    Message ── RecordDict ─┬─ ConfigRecord
                           └─ ArrayRecord ── Array ── ArrayChunk

Its references are held to this when it is announced, before anything is kept of it, and each of
its objects to what was announced when it comes. So nothing has to be walked, joined or repeated
later that a site could have made larger than what it sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import RecordDict

from fedpriv import wire
from fedpriv.errors import ProtocolError
from fedpriv_server.flower.messages import ObjectTree, object_head
from fedpriv_strategies.messages import BYTES, REPLY

SLACK = 1 << 20  # bytes of a reply beside its values
RECORDS = 4
LARGEST_WHOLE = 2 * wire.WHOLE  # with the heads of its records
_SMALL = 64 << 10  # bytes of an object that only says what belongs together
_KINDS = (
    ({"Message"}, _SMALL),
    ({"RecordDict"}, _SMALL),
    ({"ConfigRecord", "ArrayRecord"}, SLACK),
    ({"Array"}, _SMALL),
    ({"ArrayChunk"}, 4 * wire.BLOCK + 1024),  # with the heads of NumPy's format and of Flower's
)
_ARRAY = 3  # the level of an Array


@dataclass(frozen=True)
class UploadLimits:
    """What a reply may take.

    Attributes:
        size: bytes of all its objects.
        arrays: how many it may have.
    """

    size: int = SLACK
    arrays: int = 0

    @classmethod
    def of_reply_to(cls, content: RecordDict) -> UploadLimits:
        """Allow a reply no more values than were sent, in any of the wire's formats.

        Allow it further bytes, if the message says that its reply may have them.
        """
        arrays = [array for record in content.array_records.values() for array in record.values()]
        stated = content.config_records[REPLY][BYTES] if REPLY in content.config_records else 0
        further = stated if isinstance(stated, int) else 0
        size = SLACK + sum(len(array.data) for array in arrays) + further
        return cls(size, 2 * len(arrays) + -(-further // wire.BLOCK))


@dataclass(frozen=True)
class Place:
    """Where in a reply an object belongs: how deep, and above which others."""

    level: int
    children: tuple[str, ...]


def outline(tree: ObjectTree, limits: UploadLimits, whole: int = 0) -> dict[str, Place]:
    """Return the place of each object of a reply, by its id.

    Args:
        whole: bytes of the content, if it came with the announcement: then all is one object.

    Raises:
        ProtocolError: the reply is of another shape, or larger than it may be.
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
    """Check that an object is of the kind and with the references that were announced.

    Raises:
        ProtocolError: it is not, or is larger than any such object.
    """
    kinds, largest = _KINDS[place.level]
    if len(content) > largest:
        raise ProtocolError(f"An object of {len(content)} bytes; {largest} are enough.")
    try:
        kind, children = object_head(content)
    except Exception as error:  # whatever a site may have put together
        raise ProtocolError(f"An object can't be read ({type(error).__name__}).") from None
    if kind not in kinds or tuple(children) != place.children:
        raise ProtocolError("An object is not what was announced.")
