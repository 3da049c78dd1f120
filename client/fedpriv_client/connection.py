"""A site's connection to its server, over Flower's fleet API.

The site dials out, and nothing listens. What arrives is a message for the installed ClientApp,
never an app: the site does not ask for bundles.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from flwr.app import Context, Message, MessageType, Metadata, RecordDict

from fedpriv import errors, logs
from fedpriv.pki.keys import PrivateKey
from fedpriv.proxy import through
from fedpriv_client.envelope import checked, unpack
from fedpriv_client.fleet import MIB, FleetClient
from fedpriv_client.flower import Announced, object_id_of, outgoing
from fedpriv_client.mailbox import HANDOVER

logs.silence("flwr")  # it would log every request
GOODBYE = 3.0  # seconds
MAX_OBJECTS = 4096  # in one message
EARLY, LATE = 5.0, 300.0  # seconds that a site's clock may be ahead of the server's, or behind it
_OTHER_NAME = (
    "is for another name. Dial one of the names it was made for, or ask the coordinator to add"
    " this one to server.names and to renew the certificate."
)
_UNTRUSTED = {  # what OpenSSL says of the server's certificate, and what it means
    "expired": "has expired. The coordinator has to renew it.",
    "not yet valid": "is not valid yet. Check this machine's clock. If it is right, the"
    " coordinator's clock was wrong when the certificate was made.",
    "mismatch": _OTHER_NAME,
    "doesn't match": _OTHER_NAME,
}


class ServerConnection:
    """Connect one site to one server. Only `reply` may be called from a second thread.

    Args:
        address: host:port.
        tls: what to trust and to show; None speaks plain HTTP.
        key: the node's identity, a P-256 key, as Flower requires.
        largest: the most bytes of a step request or an adapter. Any other message has at most
            1 MiB.

    Attributes:
        address: the server's address for messages, with the proxy in between if there is one.

    Raises:
        NetworkError: the environment names a proxy that can't be used.
    """

    def __init__(
        self, address: str, tls: ssl.SSLContext | None, key: PrivateKey, *, largest: int = 64 * MIB
    ) -> None:
        self.address = address if tls is None else address + through(f"https://{address}")
        self._client, self._largest = FleetClient(address, tls, key), largest
        self._node: int | None = None
        self._stored: dict[str, bytes] = {}  # objects of the newest message, by digest
        self._came: tuple[str, ...] = ()  # came whole: confirmed with the next pull

    def greet(self) -> None:
        """Find out what is wrong with the connection. The server sees no more than a certificate.

        Raises:
            UnreachableError: nobody answers; this may heal by itself.
            CertificateError: somebody else answers than the server of our enrolment.
        """
        with _naming(self.address):
            self._client.greet()

    def connect(self) -> int:
        """Say who we are, and return the node's id. The server sends unanswered messages again.

        Raises:
            UnreachableError: nobody answers; this may heal by itself.
            CertificateError: somebody else answers than the server of our enrolment.
            AdmissionError: the server does not know our key, or no longer accepts it.
            ClockError: the clocks differ too much for a signature to be fresh.
        """
        self._node, self._came = None, ()
        with _naming(self.address):
            self._node = self._client.activate()
        return self._node

    def receive(self, wants: Callable[[Metadata], bool] = lambda _: True) -> Message | None:
        """Wait a while for a message, and return it; None if none came, or none that is wanted.

        Objects that came with the previous message are not fetched again.

        Args:
            wants: asked before the content is fetched.

        Raises:
            UnreachableError, CertificateError, AdmissionError, ClockError: see `connect`.
            ProtocolError: what came is not a message. It was confirmed, so it does not come again.
        """
        node = self._connected()
        with _naming(self.address):
            announced = self._client.pull(node, self._came)
            self._came = ()
            if announced is None:
                return None
            metadata, is_wanted = announced.metadata, wants(announced.metadata)
            if announced.is_whole:
                self._came = (metadata.message_id,)
                return checked(announced.whole) if is_wanted else None
            try:
                message = self._fetch(node, announced) if is_wanted else None
            except errors.ProtocolError:
                self._client.confirm(node, metadata)
                raise
            self._client.confirm(node, metadata)
        return message

    def _fetch(self, node: int, announced: Announced) -> Message:
        metadata, keys = announced.metadata, announced.object_ids()
        carries_values = metadata.message_type in (MessageType.TRAIN, HANDOVER)
        largest = self._largest if carries_values else MIB
        if len(keys) > MAX_OBJECTS:
            raise errors.ProtocolError(f"A message has {len(keys)} objects, more than any needs.")
        stored = {key: content for key, content in self._stored.items() if key in keys}
        self._stored = stored
        for key in keys - stored.keys():
            content = self._client.fetch(node, metadata.run_id, key)
            if content is None:
                gone = f"{self.address}: an object of a message is missing."
                raise errors.UnreachableError(gone)
            if object_id_of(content) != key:
                raise errors.ProtocolError("An object of a message does not match its digest.")
            stored[key] = content
            if sum(map(len, stored.values())) > largest:
                stored.clear()
                raise errors.ProtocolError(f"A message of more than {largest:,} bytes.")
        message = unpack(metadata.message_id, stored, largest)
        if message.metadata.message_type != metadata.message_type:
            raise errors.ProtocolError("A message is of another kind than announced.")
        return message

    def reply(self, message: Message) -> None:
        """Send a reply, without the objects of it that the server already has.

        Raises:
            UnreachableError, CertificateError, AdmissionError, ClockError: see `connect`.
            NetworkError: the server does not take it.
        """
        node, run = self._connected(), message.metadata.run_id
        with outgoing(message) as reply, _naming(self.address):
            session, missing = self._client.announce(node, reply)
            for key in missing:
                if not self._client.push(node, run, session, key, reply.content(key)):
                    raise errors.NetworkError(f"{self.address}: did not accept a reply.")

    def close(self) -> None:
        """Say goodbye, if the server listens. No server can keep a site from ending."""
        node, self._node = self._node, None

        def goodbye(node: int) -> None:
            with suppress(errors.NetworkError), _naming(self.address):
                self._client.deactivate(node)

        if node is not None:
            last = threading.Thread(target=goodbye, args=(node,), name="goodbye", daemon=True)
            last.start()
            last.join(GOODBYE)
        self._client.close()

    def context(self) -> Context:
        """Return the empty context with which a ClientApp is called."""
        node = self._connected()
        return Context(run_id=0, node_id=node, node_config={}, state=RecordDict(), run_config={})

    def _connected(self) -> int:
        if self._node is None:
            raise errors.UnreachableError(f"{self.address}: not connected.")
        return self._node


@contextmanager
def _naming(address: str) -> Iterator[None]:
    """Turn errors of the transport into errors that a person can act on."""
    try:
        yield
    except errors.FedprivError:
        raise
    except httpx.HTTPStatusError as error:
        raise _refused(address, error.response) from None
    except httpx.TransportError as error:
        raise _unreachable(address, error) from None
    except httpx.InvalidURL as error:
        raise errors.UnreachableError(f"{address}: is not an address ({error}).") from None
    except Exception as error:  # an answer of a server may cause any error
        text = f"{address}: answers, but not as a fedpriv server ({type(error).__name__})."
        raise errors.UnreachableError(text) from None


def _refused(address: str, response: httpx.Response) -> Exception:
    status = response.status_code
    ahead = _ahead(response) if status == 401 else None
    if ahead is not None and not -LATE <= ahead <= EARLY:
        return errors.ClockError(
            f"{address}: this machine's clock is {abs(ahead):.0f} s"
            f" {'ahead of' if ahead > 0 else 'behind'} the server's. Set it by NTP; a signature"
            f" is valid for {LATE:.0f} s."
        )
    if status == 401:
        return errors.AdmissionError(
            f"{address}: does not know this site's key. It was not registered, or was revoked,"
            " or the server was restarted."
        )
    if status == 400:
        return errors.AdmissionError(f"{address}: does not admit this site's key.")
    says = "answers" if 500 <= status < 600 or status == 499 else "refuses"
    return errors.UnreachableError(f"{address}: {says} with status {status}.")


def _ahead(response: httpx.Response) -> float | None:
    """Return how many seconds our clock is ahead of the server's, to the second."""
    try:
        there = parsedate_to_datetime(response.headers["date"])
        return (datetime.now(UTC) - there).total_seconds()
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def _unreachable(address: str, error: httpx.TransportError) -> Exception:
    """Find the cause of a failed connection in what OpenSSL says about it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    text = str(error).lower()
    if isinstance(cause, ssl.SSLCertVerificationError):
        return errors.CertificateError(f"{address}: {_untrusted(cause)}")
    if isinstance(cause, ssl.SSLError) or "ssl" in text or "certificate" in text:
        if "wrong_version_number" in text or "record layer" in text:
            return errors.CertificateError(
                f"{address}: does not speak TLS. Is it the right port, and does the server run"
                " with a certificate?"
            )
        if "alert" in text or "certificate required" in text:
            return errors.CertificateError(
                f"{address}: refuses this site's certificate ({_reason(error)}). Ask the"
                " coordinator for a new enrolment."
            )
    if isinstance(error, httpx.RemoteProtocolError):
        if error.request.url.scheme == "https":
            return errors.UnreachableError(f"{address}: hung up.")
        advice = "If it speaks TLS, leave server.plain out of the site's file."
        return errors.UnreachableError(f"{address}: hung up. {advice}")
    return errors.UnreachableError(f"{address}: can't be reached ({_reason(error)}).")


def _untrusted(error: ssl.SSLCertVerificationError) -> str:
    message = error.verify_message
    for said, meaning in _UNTRUSTED.items():
        if said in message:
            return f"the server's certificate {meaning}"
    return (
        "the server's certificate was not signed by the authority of this site's enrolment"
        f" ({message}). This is another federation's server, or somebody is in between."
    )


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
