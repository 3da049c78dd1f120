"""Requests of Flower's fleet API: who signed one, and what it says."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from flwr.app import Metadata
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.common.serde import message_from_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import message_pb2 as objects
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.error import http_error_translator
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from fedpriv.errors import ProtocolError
from fedpriv_server.flower.messages import ObjectTree

# Re-exported, beside the names below: the requests that are answered, and the errors' answers.
__all__ = ["fleet", "http_error_translator", "objects"]
SIGNATURE_LIFE = TIMESTAMP_TOLERANCE + 2 * SYSTEM_TIME_TOLERANCE  # seconds, clock errors included


@dataclass(frozen=True)
class Signature:
    """What a request says about who signed it, and when. None of it is checked yet.

    Attributes:
        key: public key, PEM.
        time: the text that was signed.
    """

    key: bytes
    time: str
    _signature: bytes

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Signature:
        """Read a signature. Raise KeyError or ValueError if a header is missing or not Flower's."""
        return cls(
            key=b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True),
            time=headers[TIMESTAMP_HEADER],
            _signature=b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True),
        )

    def is_fresh(self) -> bool:
        """Tell whether the signature still counts by Flower's time limits.

        Raises:
            ValueError, TypeError: its time can't be read, or has no time zone.
        """
        age = (now() - datetime.fromisoformat(self.time)).total_seconds()
        return -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE

    def is_genuine(self) -> bool:
        """Tell whether the key made the signature.

        Raises:
            ValueError: the key can't be read.
        """
        key = bytes_to_public_key(self.key)
        return verify_signature(key, self.time.encode("ascii"), self._signature)


def announced(request: fleet.PushMessagesRequest) -> tuple[Metadata, ObjectTree, bytes]:
    """Return the metadata of the one reply that a request announces, its objects, and its content.

    The caller has to check who sent it. The content, which may not have come yet, is taken out
    of the request, so that nobody else reads it.

    Raises:
        ProtocolError: the request has not exactly one reply, or the reply can't be read.
    """
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise ProtocolError("Not one reply at a time.")
    (said,), (tree,) = request.messages_list, request.message_object_trees
    content = said.content.SerializeToString()
    said.content.Clear()
    try:
        message = message_from_proto(said)
    except Exception as error:  # a site may have sent anything
        raise ProtocolError(f"A reply that can't be read ({type(error).__name__}).") from None
    return message.metadata, tree, content
