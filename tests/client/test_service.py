"""Whatever a server says, a site's process goes on."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.fleet_pb2 import ActivateNodeResponse

import fedpriv_client.service as service_module
from fedpriv.errors import AdmissionError, CertificateError, ClockError, LimitError
from fedpriv.pki.keys import new_key
from fedpriv.process import Status, read_status
from fedpriv.protocol import BODY, Refusal
from fedpriv_client.connection import ServerConnection
from fedpriv_client.mailbox import MOST, Mailbox
from fedpriv_client.service import ANEW, DONE, Service
from tests.waiting import CEILING, wait_until

from .conftest import asked


class Running:
    """A service with an app that answers with the message's own body.

    Attributes:
        answered: bodies.
        gate: cleared, the app waits.
        refusal: what it answers.
        failure: what ended the service.
    """

    def __init__(self, server: Any, folder: Path) -> None:
        self.folder = folder
        self.connection = ServerConnection(server.address, None, new_key())
        self.service = Service(self.connection, Status(folder))
        self.answered: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: BaseException | None = None
        self.refusal: Refusal | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Running:
        self.service.connect()
        self.thread.start()
        return self

    def _run(self) -> None:
        app = ClientApp()

        @app.query()
        def query(message: Message, context: Context) -> Message:
            return self._answer(message)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            return self._answer(message)

        @app.query("adapter")
        def adapter(message: Message, context: Context) -> Message:
            return self._answer(message)

        try:
            self.service.run(app)
        except BaseException as error:
            self.failure = error

    def _answer(self, message: Message) -> Message:
        self.gate.wait(CEILING)
        self.answered.append(str(message.content["fedpriv"]["body"]))  # type: ignore[index]
        body = self.refusal and ConfigRecord({"body": self.refusal.model_dump_json()})
        return Message(RecordDict({BODY: body} if body else {}), reply_to=message)

    def close(self) -> None:
        self.gate.set()
        self.service.stop()
        if self.thread.is_alive():
            self.thread.join(CEILING)
        self.service.close()


@pytest.fixture
def site(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(service_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(service_module, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(service_module, "REVOKED", CEILING)
    monkeypatch.setattr(service_module, "CALM", service_module.PACE)
    made = Running(server, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "evaluate"},
        {"kind": "train.other"},
        {"kind": "no such thing"},
        {"kind": "train", "group": "9" * 5000},
        {"ttl": -1e9},
        {"ttl": math.nan},
        {"ttl": math.inf},
        {"created_at": 1.0, "ttl": 1.0},
    ],
    ids=str,
)
def test_no_message_ends_the_process(server: Any, site: Running, bad: dict[str, Any]) -> None:
    server.say(asked("bad", **bad))
    server.say(asked("good"))
    site.start()
    wait_until(lambda: "good" in site.answered)
    assert site.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("path", ["activate-node", "pull-messages", "push-messages", "push-object"])
def test_no_answer_ends_the_process(server: Any, site: Running, path: str) -> None:
    """Bad gzip, no protobuf and a refusal of every kind, for a while; then all is well again."""
    site.start()
    wait_until(lambda: "pull-messages" in server.asked)
    answers = [(status, b"{}", {}) for status in (503, 409, 404, 400, 401, 302)]
    answers += [(200, b"\xff", {}), (200, b"not gzip", {"Content-Encoding": "gzip"})]
    server.script[path] = lambda *_: answers.pop() if answers else None
    if path == "activate-node":
        server.script["pull-messages"] = lambda *_: (503, b"", {}) if next(once, 0) else None
    once = iter([1])
    wait_until(lambda: server.say(asked("one more")) and not (answers and site.thread.is_alive()))
    server.say(asked("good"))
    wait_until(lambda: "good" in site.answered)
    assert site.failure is None


def test_while_it_computes_the_server_is_asked_rarely(
    server: Any, site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it says could slow a step, and how soon it is asked show when one is done."""
    monkeypatch.setattr(service_module, "CALM", CEILING)
    computing = threading.Event()
    site.gate.clear()
    monkeypatch.setattr(site.gate, "wait", _then(computing.set, site.gate.wait))
    server.say(asked("step", kind="train"))
    site.start()
    assert computing.wait(CEILING)
    before = server.asked.count("pull-messages")
    server.say(asked("good"))
    computing.clear()
    time.sleep(20 * service_module.PACE)
    assert server.asked.count("pull-messages") <= before + 1  # it may have begun to ask
    site.gate.set()
    wait_until(lambda: "good" in site.answered)


def _then(first: Any, second: Any) -> Any:
    def both(*given: Any) -> Any:
        first()
        return second(*given)

    return both


@pytest.mark.parametrize("error", [ClockError, CertificateError, ZeroDivisionError])
def test_what_may_heal_is_tried_again_once_a_connection_was_made(
    server: Any,
    site: Running,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    site.start()
    calls = []

    def broken(*_: object) -> None:
        calls.append(1)
        raise error("broken")

    with monkeypatch.context() as patch:
        patch.setattr(site.connection, "receive", broken)
        if error is not ZeroDivisionError:
            patch.setattr(site.connection, "connect", broken)
        wait_until(lambda: len(calls) > 8)
        assert "broken" in read_status(site.folder)["problem"] or error is ZeroDivisionError
    server.say(asked("good"))
    wait_until(lambda: "good" in site.answered)
    if error is not ZeroDivisionError:
        assert sum("broken Trying" in record.message for record in caplog.records) <= 2
    wait_until(lambda: read_status(site.folder)["problem"] == "")


@pytest.mark.parametrize("error", [ClockError, CertificateError, AdmissionError])
def test_what_waiting_does_not_heal_ends_the_first_connection(
    site: Running, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise error("broken")

    monkeypatch.setattr(site.connection, "connect", broken)
    with pytest.raises(error):
        site.start()


def test_a_key_that_stays_refused_ends_the_process(
    server: Any, site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "REVOKED", 0.3)
    site.start()
    wait_until(lambda: "pull-messages" in server.asked)
    refused = (401, b"{}", {})
    server.script = {"activate-node": lambda *_: refused, "pull-messages": lambda *_: refused}
    wait_until(lambda: site.failure is not None)
    assert isinstance(site.failure, AdmissionError)
    assert site.failure.exit_code == 3


def test_a_key_that_is_refused_for_a_moment_does_not(server: Any, site: Running) -> None:
    site.start()
    refusals = [(401, b"{}", {})] * 4
    server.script["activate-node"] = lambda *_: refusals.pop() if refusals else None
    once = iter([(401, b"{}", {})])
    server.script["pull-messages"] = lambda *_: next(once, None)
    wait_until(lambda: not refusals)
    server.say(asked("good"))
    wait_until(lambda: "good" in site.answered)


@pytest.mark.parametrize("path", ["pull-messages", "push-messages"])
def test_a_server_that_started_again_is_no_attack(
    server: Any, site: Running, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows no connection of before; that it refuses our key shows when we connect anew."""
    once = iter([(401, b"{}", {}), (400, b"{}", {})])
    server.script[path] = lambda *_: next(once, None)
    server.say(asked("first"))
    site.start()
    wait_until(lambda: server.asked.count("activate-node") >= 2)
    wait_until(lambda: server.say(asked("again")) and server.replies)
    assert ANEW in caplog.text
    assert "this site's key" not in caplog.text


def test_a_reply_to_an_earlier_start_of_the_server_is_not_sent(
    server: Any, site: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """In the name of another node it would look like a forgery."""
    node = ActivateNodeResponse(node_id=6).SerializeToString()
    server.script["activate-node"] = lambda *_: (200, node, {})
    server.say(asked("earlier"))
    site.start()
    wait_until(lambda: server.asked.count("activate-node") == 2)
    assert site.answered == ["earlier"]
    assert not server.replies
    assert f"stays in the outbox until it is asked for: {ANEW}" in caplog.text


def test_a_job_that_is_finished_ends_without_an_alarm(
    server: Any, site: Running, caplog: pytest.LogCaptureFixture
) -> None:
    server.say(asked("the adapter", kind="query.adapter"))
    site.start()
    wait_until(lambda: read_status(site.folder).get("activity") == "waiting for the next job")
    with caplog.at_level("INFO"):
        server.script["activate-node"] = server.script["pull-messages"] = lambda *_: (503, b"", {})
        wait_until(lambda: read_status(site.folder)["connection"] == "waiting")
        wait_until(lambda: DONE in caplog.text)
    assert read_status(site.folder)["problem"] == ""
    assert not [record for record in caplog.records if record.levelname != "INFO"]


def test_status_says_what_was_refused_last(server: Any, site: Running) -> None:
    site.refusal = Refusal.of(LimitError("more steps than 1", "max-steps"))
    server.say(asked("refused"))
    site.start()
    wait_until(lambda: read_status(site.folder).get("refusal") == "max-steps (LimitError)")
    site.refusal = None
    server.say(asked("good"))
    wait_until(lambda: read_status(site.folder)["refusal"] == "")


def test_an_asking_thread_that_can_not_go_on_ends_the_process(
    site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise GeneratorExit

    monkeypatch.setattr(site.service, "_ask_once", broken)
    site.start()
    wait_until(lambda: not site.thread.is_alive())
    assert isinstance(site.failure, GeneratorExit)


def test_a_reply_that_was_not_stored_is_asked_for_again(server: Any, site: Running) -> None:
    server.stores = False
    server.say(asked("first"))
    site.start()
    wait_until(lambda: server.asked.count("activate-node") == 2)
    assert "Not answered" not in json.dumps(read_status(site.folder))


@pytest.mark.slow
def test_a_busy_site_holds_no_more_than_it_can_use(server: Any, site: Running) -> None:
    """A question that is being answered, a few that wait, and the newest request for a step."""
    site.gate.clear()
    large = ArrayRecord({"a": Array(np.zeros(100_000, np.float32))})
    server.say(asked("at work"))
    site.start()
    wait_until(lambda: "confirm-message-received" in server.asked)
    for number in range(20):
        server.say(asked(f"question {number}"))
        server.say(asked(f"step {number}", kind="train", group=str(number), arrays=large))
    server.say(asked("old step", kind="train", group="3", arrays=large))
    wait_until(lambda: len(server.confirmed) == 42)
    site.gate.set()
    server.say(asked("the end", kind="train", group="100"))
    wait_until(lambda: "the end" in site.answered)
    questions = [body for body in site.answered if body.startswith("question")]
    assert 1 <= len(questions) <= MOST + 1
    assert set(site.answered) - set(questions) <= {"at work", "step 19", "the end"}


def test_what_is_not_wanted_is_not_fetched(server: Any, site: Running) -> None:
    site.gate.clear()
    server.say(asked("at work"))
    site.start()
    wait_until(lambda: len(server.confirmed) == 1)
    server.say(asked("newest", kind="train", group="50"))
    for number in range(20):
        server.say(asked(f"old {number}", kind="train", group="3"))
    wait_until(lambda: len(server.confirmed) == 22)
    assert server.asked.count("pull-object") == 3 * 2


def test_of_questions_the_newest_wait() -> None:
    mailbox = Mailbox()
    for number in range(MOST + 3):
        message = asked(f"question {number}")
        assert mailbox.wants(message.metadata)
        mailbox.put(message)
    first = mailbox.get()
    assert first is not None
    assert first.content["fedpriv"]["body"] == "question 3"


def test_what_waits_is_forgotten_when_the_server_asks_anew() -> None:
    mailbox = Mailbox()
    mailbox.put(asked(kind="train", group="50"))
    assert not mailbox.wants(asked(kind="train", group="1").metadata)
    mailbox.clear()
    assert mailbox.wants(asked(kind="train", group="1").metadata)
    mailbox.put(asked("late"))
    mailbox.close()
    assert mailbox.get() is None


def test_of_adapters_the_newest_waits_and_steps_go_first() -> None:
    """Each may be large, and a server may send as many as it likes."""
    mailbox = Mailbox()
    adapters = [asked(str(i), kind="query.adapter") for i in range(3)]
    for message in (*adapters, asked(kind="train"), asked("question")):
        assert mailbox.wants(message.metadata)
        mailbox.put(message)
    kinds = []
    for _ in range(3):
        message = mailbox.get()
        assert message is not None
        kinds.append(message.metadata.message_type)
    assert kinds == ["query", "train", "query.adapter"]
    assert message is adapters[-1]
    mailbox.put(adapters[0])
    mailbox.clear()
    mailbox.close()
    assert mailbox.get() is None
