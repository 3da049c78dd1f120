"""Server messages: the bodies of `fedpriv.protocol` as Flower carries them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedpriv.errors import ProtocolError
from fedpriv.models.vector import Vector, check_vector
from fedpriv.privacy.privatised import Privatised, received, require_privatised
from fedpriv.protocol import Answer, Body, Refusal, parse_answer

QUERY, TRAIN = MessageType.QUERY, MessageType.TRAIN


def message(
    body: Body, node: int, kind: str, group: str, vector: ArrayRecord | None = None
) -> Message:
    """A message to one node; `group` is its round."""
    content = RecordDict({"fedpriv": ConfigRecord({"body": body.model_dump_json()})})
    if vector is not None:
        content["arrays"] = vector
    return Message(content, dst_node_id=node, message_type=kind, group_id=group)


def as_arrays(vector: Privatised[Vector]) -> ArrayRecord:
    """A vector as it is sent to sites.

    Raises:
        RawValueError: it is raw.
    """
    values = require_privatised(vector, "vector")
    return ArrayRecord({"vector": Array(np.ascontiguousarray(values, dtype=np.float32))})


def as_vector(arrays: ArrayRecord, size: int) -> Privatised[Vector]:
    """The vector in a site's reply: released by that site, on its word.

    Raises:
        ProtocolError: not one finite float32 vector of `size` values.
    """
    if set(arrays) != {"vector"}:
        raise ProtocolError("Expected one array named 'vector'.")
    try:
        vector: Vector = arrays["vector"].numpy()
    except (ValueError, TypeError, EOFError):
        raise ProtocolError("The array 'vector' can't be decoded.") from None
    check_vector(vector, size)
    return received(vector)


def answer_of(reply: Message, kind: type[Answer]) -> Answer | Refusal:
    """What a node answered.

    Raises:
        ProtocolError: the node or the transport failed, or the body is malformed.
    """
    if reply.has_error():
        raise ProtocolError(f"The node answered with error code {reply.error.code}.")
    record = reply.content.config_records.get("fedpriv")
    return parse_answer(kind, None if record is None else record.get("body"))


def payload_bytes(messages: Iterable[Message]) -> int:
    """Bytes of the arrays and bodies of messages, without the transport's own."""
    total = 0
    for item in messages:
        if item.has_content():
            for arrays in item.content.array_records.values():
                total += sum(len(array.data) for array in arrays.values())
            for config in item.content.config_records.values():
                total += sum(len(str(value)) for value in config.values())
    return total
