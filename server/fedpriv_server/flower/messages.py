"""Flower's messages, and the objects in which they are sent."""

from __future__ import annotations

from copy import copy

from flwr.app import Error, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.app.message.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import recorddict_from_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.recorddict_pb2 import RecordDict as WholeContent
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_id,
)
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["ArrayChunk", "ObjectTree"]  # re-exported, beside the names below
SERVER_NODE = SUPERLINK_NODE_ID
APP_FAILED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION  # code of an error reply


def set_identity(run: int, task: int) -> None:
    """Tell Flower's Message constructor who the process is, as Flower's launchers would."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run, task, SERVER_NODE


def set_message_id(message: Message, message_id: str) -> None:
    """Set a message's id, which Flower lets only its own server do."""
    message.metadata.__dict__["_message_id"] = message_id


def replying(
    reply: Message, reply_to: str, content: RecordDict | None = None, error: Error | None = None
) -> Message:
    """Copy a reply with another content or an error, as a reply to the message with that id."""
    metadata = copy(reply.metadata)
    metadata.__dict__["_reply_to_message_id"] = reply_to
    return make_message(metadata, content, error)


# The objects in which messages are sent

object_id_of = get_object_id  # the SHA-256 of an object's content, in hex
object_body = get_object_body  # what follows the head of an object of that kind


def object_head(content: bytes) -> tuple[str, list[str]]:
    """Return the kind of a well-formed object, and the ids of the objects that it refers to.

    Raises:
        Exception: the object is not well-formed; it may be of any class.
    """
    validate_object_content(content)
    kind, children, _ = get_object_head_values_from_object_content(content)
    return kind, children


def whole_content(content: bytes) -> RecordDict:
    """Return the content of a reply that came with its announcement.

    Raises:
        Exception: the content can't be read; it may be of any class.
    """
    return recorddict_from_proto(WholeContent.FromString(content))
