"""The site's process: ask for messages, answer them, and survive what networks do.

One thread asks and keeps the connection open, so that the server knows at any time that the
site is there; the other answers, one message after the other. Whatever goes wrong on the way,
the site connects anew and the server asks again; a repeated request is answered from the
outbox, so nothing is paid twice.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from flwr.app import Message, MessageType
from flwr.clientapp import ClientApp

from fedpriv.errors import FedprivError, NetworkError, ProtocolError, UnreachableError
from fedpriv.process import Status
from fedpriv_client.link import Link

log = logging.getLogger(__name__)
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds between two tries
GIVE_UP = 30.0  # seconds for which a reply is tried; then the server asks for it again


class Service:
    """Serves a server until it is stopped.

    Args:
        link: not connected yet.
        status: where to say how it goes.
        on_connection: told whenever the connection is made or lost.
    """

    def __init__(
        self, link: Link, status: Status, on_connection: Callable[[bool], None] = lambda up: None
    ) -> None:
        self._link, self._status, self._on_connection = link, status, on_connection
        self._messages: queue.Queue[Message | None] = queue.Queue()
        self._stopping = threading.Event()
        self._anew = threading.Event()  # set to connect anew, for lack of a reply that was sent
        self._failure: NetworkError | None = None
        self._asking = threading.Thread(target=self._ask, name="asking", daemon=True)

    def connect(self) -> None:
        """Make the first connection, waiting for a server that is not there yet.

        Raises:
            NetworkError: something that waiting does not heal.
        """
        self._connect()
        self._asking.start()

    def run(self, app: ClientApp) -> None:
        """Answer messages by `app` until `stop`.

        Raises:
            NetworkError: the connection was lost for a reason that waiting does not heal.
        """
        while (messages := self._waiting()) is not None:
            for message in messages:
                self._answer(app, message)
        if self._failure is not None:
            raise self._failure

    def _waiting(self) -> list[Message] | None:
        """The messages that are worth an answer, at least one; None to stop.

        Of requests for a step only that of the latest round is: the others were asked again, or
        their round is over.
        """
        messages = [self._messages.get()]
        with suppress(queue.Empty):
            while True:
                messages.append(self._messages.get_nowait())
        found = [message for message in messages if message is not None]
        if len(found) < len(messages):
            return None
        steps = [m for m in found if m.metadata.message_type == MessageType.TRAIN]
        newest = max(reversed(steps), key=_round, default=None)
        return [m for m in found if m is newest or m.metadata.message_type != MessageType.TRAIN]

    def stop(self) -> None:
        """Stop asking; a message being answered is answered first."""
        self._stopping.set()
        self._messages.put(None)

    def close(self) -> None:
        """Say goodbye to the server."""
        self._stopping.set()
        self._link.close()

    def _connect(self) -> None:
        pause, told = FIRST_PAUSE, ""
        while not self._stopping.is_set():
            try:
                self._link.connect()
            except UnreachableError as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("%s Trying again.", told)
                    self._status.update(connection="waiting", problem=told)
                self._stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                log.info("Connected to %s.", self._link.address)
                self._status.update(connection="connected", problem="")
                self._on_connection(True)
                return

    def _ask(self) -> None:
        """Keep asking. What is not healed by connecting anew ends the service."""
        while not self._stopping.is_set():
            try:
                if self._anew.is_set():
                    self._anew.clear()
                    self._connect()
                message = self._link.receive()
                if message is not None:
                    self._messages.put(message)
            except ProtocolError as error:
                log.error("A message was not taken: %s", error)
            except NetworkError as error:
                if self._stopping.is_set():
                    return
                log.warning("Connection lost: %s", error)
                self._status.update(connection="lost", problem=str(error))
                self._on_connection(False)
                self._anew.set()
                self._stopping.wait(FIRST_PAUSE)
                self._reconnect()
            except Exception as error:
                log.exception("Asking failed: %s", type(error).__name__)
                self._anew.set()
                self._stopping.wait(LONGEST_PAUSE)

    def _reconnect(self) -> None:
        try:
            self._connect()
            self._anew.clear()
        except NetworkError as error:
            self._failure = error
            self.stop()

    def _answer(self, app: ClientApp, message: Message) -> None:
        self._status.update(activity=f"answering {message.metadata.message_type}")
        try:
            reply = app(message, self._link.context())
        except FedprivError as error:  # the link was lost between message and answer
            log.warning("Not answered: %s", error)
            return
        finally:
            self._status.update(activity="waiting for messages")
        deadline, pause = time.monotonic() + GIVE_UP, FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                self._link.reply(reply)
                return
            except UnreachableError as error:
                if time.monotonic() > deadline:
                    log.warning("A reply stays in the outbox until it is asked for: %s", error)
                    self._anew.set()
                    return
                self._stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            except NetworkError as error:
                log.warning("A reply stays in the outbox until it is asked for: %s", error)
                self._anew.set()
                return


def _round(message: Message) -> int:
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else 0
