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

# Beside what is below: the requests that are answered, and how errors are.
__all__ = ["fleet", "http_error_translator", "objects"]
SIGNATURE_LIFE = TIMESTAMP_TOLERANCE + 2 * SYSTEM_TIME_TOLERANCE  # seconds, clocks' faults included


@dataclass(frozen=True)
class Signature:
    """What a request says of who signed it, and when: nothing of it is checked yet.

    Attributes:
        key: public, PEM.
        time: as it was signed.
    """

    key: bytes
    time: str
    _signature: bytes

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Signature:
        """Read a signature. Raises KeyError, ValueError if a header is missing or not Flower's."""
        return cls(
            key=b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True),
            time=headers[TIMESTAMP_HEADER],
            _signature=b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True),
        )

    def is_fresh(self) -> bool:
        """Tell whether the signature counts now, as Flower sees it.

        Raises:
            ValueError, TypeError: its time is no time, or has no zone.
        """
        age = (now() - datetime.fromisoformat(self.time)).total_seconds()
        return -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE

    def is_genuine(self) -> bool:
        """Tell whether the key made the signature.

        Raises:
            ValueError: the key is no key.
        """
        key = bytes_to_public_key(self.key)
        return verify_signature(key, self.time.encode("ascii"), self._signature)


def announced(request: fleet.PushMessagesRequest) -> tuple[Metadata, ObjectTree, bytes]:
    """Take the one reply that a request announces, its objects, and what came of its content.

    Check who sent it. The content is taken out of the request, so that nobody else reads it.

    Raises:
        ProtocolError: not one reply, or one that can't be read.
    """
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise ProtocolError("Not one reply at a time.")
    (said,), (tree,) = request.messages_list, request.message_object_trees
    content = said.content.SerializeToString()
    said.content.Clear()
    try:
        message = message_from_proto(said)
    except Exception as error:  # whatever a site may have put together
        raise ProtocolError(f"A reply that can't be read ({type(error).__name__}).") from None
    return message.metadata, tree, content
