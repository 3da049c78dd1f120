"""The server's messages: the bodies of `fedpriv.protocol` in the form that Flower carries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, Metadata, RecordDict

from fedpriv.errors import ProtocolError, RoundError
from fedpriv.models.vector import Vector
from fedpriv.names import Wire
from fedpriv.privacy.mechanism.privatised import Privatised, received, require_privatised
from fedpriv.protocol import BODY, SIGNED, SYNTHETIC, VECTOR, Body, Refusal
from fedpriv.secure_sum.members import Bits
from fedpriv.wire import Blocks, MaskedBlocks, encode, encode_text

QUERY, TRAIN = MessageType.QUERY, MessageType.TRAIN
REPLY, BYTES = "reply", "bytes"  # tell our own end of the connection how much to let through
TRAIN_SET = f"{TRAIN}.set"
REPORT, ADAPTER = f"{MessageType.QUERY}.report", f"{MessageType.QUERY}.adapter"

Answer = TypeVar("Answer", bound=Body)


class Nodes(Protocol):
    """Carries messages to the nodes of sites and back: a Flower `Grid`, or these parts of one."""

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are connected now."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> Iterable[Message]:
        """Send messages, which gives them ids, and yield the replies that come in time."""


def ask(nodes: Nodes, messages: Sequence[Message], timeout: float) -> Iterable[tuple[int, Message]]:
    """Send messages, and yield each reply as it comes, with the node that was asked.

    The messages, which may hold a vector each, are not kept while replies are awaited.
    """
    if not messages:
        return ()
    replies = nodes.send_and_receive(messages, timeout=timeout)
    return by_node([item.metadata for item in messages], replies)


def by_node(asked: Iterable[Metadata], replies: Iterable[Message]) -> Iterator[tuple[int, Message]]:
    """Yield each reply as it comes, with the node that was asked.

    Args:
        asked: metadata of the messages that were sent.
    """
    nodes = {metadata.message_id: metadata.dst_node_id for metadata in asked}
    for reply in replies:
        yield nodes[reply.metadata.reply_to_message_id], reply


def message(
    body: Body,
    node: int,
    kind: str,
    group: str,
    vector: ArrayRecord | None = None,
    synthetic: ArrayRecord | None = None,
    reply_bytes: int = 0,
    signed: Body | None = None,
) -> Message:
    """Make a message to one node.

    Args:
        group: id of the message's round.
        reply_bytes: bytes that the reply's arrays may have beyond the bytes sent in this message.
        signed: the coordinator's signature of the body.
    """
    content = RecordDict({BODY: ConfigRecord({"body": body.model_dump_json()})})
    if signed is not None:
        content.config_records[BODY][SIGNED] = signed.model_dump_json()
    if reply_bytes:
        content[REPLY] = ConfigRecord({BYTES: reply_bytes})
    if vector is not None:
        content[VECTOR] = vector
    if synthetic is not None:
        content[SYNTHETIC] = synthetic
    return Message(content, dst_node_id=node, message_type=kind, group_id=group)


def as_arrays(vector: Privatised[Vector]) -> ArrayRecord:
    """Return a vector in the form that is sent to sites: float32, in blocks.

    Raises:
        RawValueError: the vector is raw.
    """
    values = require_privatised(vector, "vector")
    arrays = {name: Array(block) for name, block in encode(values, "float32")}
    return ArrayRecord(arrays, keep_input=False)


def as_text(text: str) -> ArrayRecord:
    """Return a text in the form that is sent to sites: in blocks."""
    arrays = {name: Array(block) for name, block in encode_text(text)}
    return ArrayRecord(arrays, keep_input=False)


def arrays_of(reply: Message) -> ArrayRecord:
    """Return the arrays that came with an answer. Raise ProtocolError if there are none."""
    arrays = reply.content.array_records.get(VECTOR)
    if arrays is None:
        raise ProtocolError("The reply has no arrays.")
    return arrays


def as_blocks(arrays: Mapping[str, Array], size: int, wire: Wire) -> Privatised[Blocks]:
    """Return the vector in a site's reply, which that site says it released. Decode when iterated.

    Args:
        arrays: may stay on disk until each is asked for; only one is held at a time.
    """
    return received(Blocks(_reading(arrays), arrays.keys(), size, wire))


def as_masked(arrays: Mapping[str, Array], size: int, bits: Bits) -> MaskedBlocks:
    """Return the masked share in a site's reply. It is not privatised, and of no use by itself."""
    return MaskedBlocks(_reading(arrays), arrays.keys(), size, bits)


def _reading(arrays: Mapping[str, Array]) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        try:
            return arrays[name].data
        except OSError as error:  # our own disk failed, not the site
            text = f"A reply can't be read from disk ({error.strerror})."
            raise RoundError(text, may_heal=True) from None
        except Exception as error:  # a site may have sent anything
            raise ProtocolError(f"Array {name!r} can't be read ({type(error).__name__}).") from None

    return read


def answer_of(reply: Message, kind: type[Answer]) -> Answer | Refusal:
    """Read a node's answer.

    Raises:
        ProtocolError: the node or the transport failed, or the body is malformed.
    """
    return parse_answer(kind, body_of(reply))


def parse_answer(kind: type[Answer], text: object) -> Answer | Refusal:
    """Parse an answer of the expected kind, or the refusal that was sent instead.

    Raises:
        ProtocolError: the text is neither of the two.
    """
    try:
        return Refusal.parse(text)
    except ProtocolError:
        return kind.parse(text)


def body_of(reply: Message) -> object:
    """Return the JSON part of an answer. It is not checked yet.

    Raises:
        ProtocolError: the node or the transport failed.
    """
    if reply.has_error():
        raise ProtocolError(f"The node answered with error code {reply.error.code}.")
    record = reply.content.config_records.get(BODY)
    return None if record is None else record.get("body")


def body_bytes(item: Message) -> int:
    """Return how many bytes a message's body has, without those of the transport."""
    return _texts(item.content) if item.has_content() else 0


def payload_bytes(messages: Iterable[Message]) -> int:
    """Return how many bytes the bodies and arrays of messages have. The arrays must be at hand."""
    return sum(content_bytes(item.content) for item in messages)


def content_bytes(content: RecordDict) -> int:
    """Return how many bytes a content's texts and arrays have. The arrays must be at hand."""
    arrays = (item for record in content.array_records.values() for item in record.values())
    return _texts(content) + sum(len(array.data) for array in arrays)


def _texts(content: RecordDict) -> int:
    records = content.config_records.values()
    return sum(len(str(value).encode()) for config in records for value in config.values())
