"""The site's process: ask for messages, answer them, and survive network faults.

One thread asks for messages and keeps the connection open, so that the server knows at any time
that the site is there. The other thread answers, one message after the other. While it computes,
the first one asks rarely: a server's messages could slow the computation down, or show when it is
done (law 19).

Whatever goes wrong on the network, the site connects again and the server asks again. A repeated
request is answered from the outbox, so nothing is paid twice.

Nothing that a server says ends the process, with one exception: the server refuses the site's key.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import get_args

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedpriv.errors import AdmissionError, NetworkError, ProtocolError, UnreachableError
from fedpriv.process import Activity, Answering, Connection, Status
from fedpriv.protocol import BODY, Refusal
from fedpriv_client.connection import ServerConnection
from fedpriv_client.held_space import full_disk
from fedpriv_client.mailbox import HANDOVER, QUESTIONS, STEPS, Mailbox

log = logging.getLogger(__name__)
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds between two tries
GIVE_UP = 30.0  # seconds to try to send a reply; later the server asks for it again
REVOKED = 3.0  # seconds that a key must be refused before the site believes it
PACE = 0.05  # seconds to the next question after one that brought nothing
CALM = 5.0  # seconds between two questions while an answer is computed
ANSWERING = dict(zip((*QUESTIONS, HANDOVER, *STEPS), get_args(Answering), strict=True))
REST: tuple[Activity, Activity] = "waiting for the server", "waiting for the next job"
ANEW = "The server was restarted, or no longer admits this site."
DONE = "The job is finished, and its server has stopped. Waiting for the next one."


class Service:
    """Answer a server until stopped.

    Args:
        connection: the connection, not made yet.
        status: shows people what the process does.
        on_connection: called whenever the connection is made or lost.
    """

    def __init__(
        self,
        connection: ServerConnection,
        status: Status,
        on_connection: Callable[[bool], None] = lambda up: None,
    ) -> None:
        self._connection, self._status, self._on_connection = connection, status, on_connection
        self._mailbox = Mailbox()
        self._stopping = threading.Event()
        self._anew = threading.Event()  # set to connect anew
        self._idle = threading.Event()  # cleared while an answer is computed
        self._idle.set()
        self._met = False  # whether the server has ever let us in
        self._pause, self._told = FIRST_PAUSE, ""
        self._finished = False  # whether the newest message handed over an adapter
        self._failure: BaseException | None = None
        self._asking = threading.Thread(target=self._ask, name="asking", daemon=True)

    def connect(self) -> None:
        """Make the first connection. Wait for a server that is not there yet.

        Raises:
            NetworkError: a problem that does not go away by waiting.
        """
        self._connect()
        self._asking.start()

    def run(self, app: ClientApp) -> None:
        """Answer messages with `app` until `stop` is called.

        After the first connection, any problem may heal: a clock was set, a certificate is renewed,
        somebody was in between. So the connection is tried again for ever.

        Raises:
            AdmissionError: the server keeps refusing our key, so it was revoked.
        """
        while (message := self._mailbox.get()) is not None:
            try:
                self._answer(app, message)
                if told := full_disk(self._status.folder):
                    log.error("%s", told)
            except NetworkError as error:  # the connection was lost between message and answer
                log.warning("Not answered: %s", error)
            except Exception as error:  # a server may send anything
                log.exception("Not answered: %s", type(error).__name__)
            self._status.update(activity=REST[self._finished])
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop asking. A running computation is stored first, and sent when asked for again."""
        self._stopping.set()
        self._idle.set()
        self._mailbox.close()

    def close(self) -> None:
        """Say goodbye to the server."""
        self._stopping.set()
        self._connection.close()

    def _connect(self) -> None:
        refused: float | None = None  # since when our key is refused
        while not self._stopping.is_set():
            try:
                self._connection.connect()
            except NetworkError as error:
                if not self._met and not isinstance(error, UnreachableError):
                    raise
                if not isinstance(error, AdmissionError):
                    refused = None
                elif refused is None:
                    refused = time.monotonic()
                elif time.monotonic() - refused > REVOKED:
                    raise
                self._tell("waiting", error)
            else:
                self._met = True
                self._anew.clear()
                self._mailbox.clear()  # the server repeats what we have not answered
                log.info("Connected to %s. Waiting for what it asks.", self._connection.address)
                self._status.update(connection="connected", problem="")
                self._on_connection(True)
                return

    def _ask(self) -> None:
        """Keep asking for messages. An error that ends this ends the service."""
        try:
            while not self._stopping.is_set():
                if self._anew.is_set():
                    self._connect()
                self._ask_once()
                self._idle.wait(CALM)
        except BaseException as error:  # no other code would see it
            self._failure = error
            self.stop()

    def _ask_once(self) -> None:
        try:
            message = self._connection.receive(self._mailbox.wants)
        except ProtocolError as error:
            log.error("A message was not taken: %s", error)
            self._stopping.wait(PACE)
        except AdmissionError:  # whether our key is refused shows when we connect
            self._lost(ANEW)
        except NetworkError as error:
            self._lost(error)
        except Exception as error:
            log.exception("Asking failed: %s", type(error).__name__)
            self._lost(f"Asking failed ({type(error).__name__}).")
        else:
            self._pause, self._told = FIRST_PAUSE, ""
            if message is None:
                self._stopping.wait(PACE)
            else:
                self._mailbox.put(message)

    def _lost(self, problem: str | NetworkError) -> None:
        self._anew.set()
        if not self._stopping.is_set():
            self._on_connection(False)
            self._tell("lost", problem)

    def _tell(self, connection: Connection, problem: str | NetworkError) -> None:
        """Say once what is wrong, and wait, longer each time."""
        done = self._finished and isinstance(problem, UnreachableError)
        connection, text = ("waiting", DONE) if done else (connection, str(problem))
        if text != self._told and done:
            log.info("%s", DONE)
        elif text != self._told:
            lost = "Connection lost: " if connection == "lost" else ""
            log.warning("%s%s Trying again.", lost, text)
        self._told = text
        self._status.update(connection=connection, problem="" if done else text)
        self._stopping.wait(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _answer(self, app: ClientApp, message: Message) -> None:
        kind = message.metadata.message_type
        self._finished = kind == HANDOVER
        log.info("%s.", ANSWERING[kind].capitalize())
        self._status.update(activity=ANSWERING[kind])
        self._idle.clear()
        try:
            reply = app(message, self._connection.context())
        finally:
            self._idle.set()
        deadline, pause = time.monotonic() + GIVE_UP, FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                if self._connection.context().node_id != message.metadata.dst_node_id:
                    raise AdmissionError(ANEW)  # the server would take it for a forgery
                self._connection.reply(reply)
                self._status.update(refusal=_refusal_in(reply))
                return
            except NetworkError as error:
                if not isinstance(error, UnreachableError) or time.monotonic() > deadline:
                    why = ANEW if isinstance(error, AdmissionError) else error
                    log.warning("A reply stays in the outbox until it is asked for: %s", why)
                    self._anew.set()
                    return
                self._stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)


def _refusal_in(reply: Message) -> str:
    """Return the reason of a reply that is a refusal, as the server reads it; else nothing."""
    record = reply.content.config_records.get(BODY)
    try:
        return Refusal.parse(record and record.get("body")).reason
    except ProtocolError:
        return ""
