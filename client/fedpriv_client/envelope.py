"""Check the shape of a message from a server before anything is made of it.

    Message → RecordDict → ConfigRecord
                         → ArrayRecord → Array → ArrayChunk

Several arrows may lead to the same object, for example if two blocks are all zeros. So the limit is
on the size of a message with everything in it written out, not on the bytes that were sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from flwr.app import Message

from fedpriv.errors import ProtocolError
from fedpriv_client.flower import assemble, object_body, object_head, set_message_id

_INSIDE = {
    "Message": ("RecordDict",),
    "RecordDict": ("ConfigRecord", "ArrayRecord"),
    "ConfigRecord": (),
    "ArrayRecord": ("Array",),
    "Array": ("ArrayChunk",),
    "ArrayChunk": (),
}
LARGEST = {"ConfigRecord": 1 << 20, "ArrayRecord": 1 << 20, "ArrayChunk": 8 << 20}  # bytes
LARGEST_HEAD = 64 << 10  # bytes of anything else
_Known = tuple[str, int]  # kind and size


def unpack(key: str, contents: Mapping[str, bytes], largest: int) -> Message:
    """Return the message that has an object id.

    Args:
        contents: the message's objects by id. Each id must fit its object's content.
        largest: the most bytes of the message when it is written out in full.

    Raises:
        ProtocolError: the object is not a message of the shape above, or it is larger.
    """

    def assembled() -> object:
        size = _size(key, contents, ("Message",), {})
        if size > largest:
            raise ProtocolError(f"A message of {size:,} bytes; {largest:,} are allowed here.")
        return assemble(key, contents)

    message = checked(assembled)
    set_message_id(message, key)
    return message


def checked(read: Callable[[], object]) -> Message:
    """Return the message that `read` makes. A server may have sent anything.

    Raises:
        ProtocolError: it can't be read, or has no content.
    """
    try:
        message = read()
    except ProtocolError:
        raise
    except Exception as error:
        raise ProtocolError(f"A message can't be read ({type(error).__name__}).") from None
    if not isinstance(message, Message) or not message.has_content():
        raise ProtocolError("A message without content.")
    return message


def _size(
    key: str, contents: Mapping[str, bytes], kinds: tuple[str, ...], known: dict[str, _Known]
) -> int:
    """Return the size in bytes of an object, counting every reference, also repeated ones."""
    if key not in known:
        content = contents[key]
        kind, children = object_head(content)
        if len(content) > LARGEST.get(kind, LARGEST_HEAD):
            raise ProtocolError("A message has the wrong structure.")
        body = object_body(content, kind)
        inside = _references(kind, children, body)
        size = len(content) + sum(_size(child, contents, _INSIDE[kind], known) for child in inside)
        known[key] = kind, size
    kind, size = known[key]
    if kind not in kinds:
        raise ProtocolError("A message has the wrong structure.")
    return size


def _references(kind: str, children: list[str], body: bytes) -> list[str]:
    match kind:
        case "RecordDict" | "ArrayRecord":
            return list(json.loads(body).values())
        case "Array" if len(children) != 1 or json.loads(body)["arraychunk_ids"] != [0]:
            raise ProtocolError("An array in more than one piece.")
        case _:
            return children
