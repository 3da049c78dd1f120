"""A notice that a job waits: sent once, of public facts, and whoever hangs holds up nothing."""

from __future__ import annotations

import logging
import smtplib
import time
from collections.abc import Callable, Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.site_file import NotifySection
from fedpriv.errors import ConfigError, PausedError
from fedpriv.plugins import load_part
from fedpriv_client.orders import Orders
from tests.client.client_setting import Setting
from tests.client.page_setting import Place
from tests.client.test_approval import asking
from tests.client.webhook import SECRET, Webhook
from tests.test_signed_proposal import STATED
from tests.waiting import wait_until

pytest.importorskip("apprise")
Make = Callable[..., Any]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    made = Webhook()
    yield made
    made.close()


def notifier(place: Place, *urls: str) -> Callable[[Any], None]:
    section = NotifySection.model_validate({"urls": urls, "page": "ssh to fed1, then port 8640"})
    made = load_part("notify.urls")(place.file.model_copy(update={"notify": section}))
    found: Callable[[Any], None] = made
    return found


def test_people_are_told_public_facts(tmp_path: Path, webhook: Webhook) -> None:
    webhook.free.set()
    place = Place(tmp_path)
    place.propose(STATED)
    [job] = place.jobs.waiting
    notifier(place, webhook.url)(job.proposal)
    wait_until(lambda: webhook.taken)
    [told] = webhook.taken
    assert told["title"] == f"surgery: job {job.name} waits for approval"
    for words in ("Shorter discharge letters", "Dr Ada", "localhost:8443", "ssh to fed1"):
        assert words in told["message"]
    assert "12" not in told["message"].replace("1234", "").replace("12-31", "")  # no budget


def test_a_mail_is_plain_text_whatever_a_coordinator_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Message] = []

    class Mail:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

        def sendmail(self, _from: str, _to: object, text: str) -> None:
            sent.append(message_from_string(text))

    monkeypatch.setattr(smtplib, "SMTP", Mail)
    monkeypatch.setattr(smtplib, "SMTP_SSL", Mail)
    purpose = '<h1>URGENT</h1><a href="https://example.org">the page</a><!--'
    assert STATED.statement is not None
    statement = STATED.statement.model_copy(update={"purpose": purpose})
    place = Place(tmp_path)
    place.propose(STATED.model_copy(update={"statement": statement}))
    [job] = place.jobs.waiting
    notifier(place, "mailto://site:secret@example.org?smtp=mx.example.org")(job.proposal)
    wait_until(lambda: sent)
    [text] = [part for part in sent[0].walk() if not part.is_multipart()]
    assert text.get_content_type() == "text/plain"
    content = text.get_payload(decode=True)
    assert isinstance(content, bytes) and purpose in content.decode()


def test_a_webhook_that_hangs_holds_up_nothing(
    tmp_path: Path, webhook: Webhook, caplog: Any
) -> None:
    place = Place(tmp_path)
    place.propose()
    [job] = place.jobs.waiting
    began = time.monotonic()
    with caplog.at_level(logging.DEBUG):
        notifier(place, webhook.url, "json://127.0.0.1:9/closed")(job.proposal)
        assert time.monotonic() - began < 10  # of the 60 that it would hang
        wait_until(webhook.asked.is_set)
        wait_until(lambda: "A notice was not sent: notify.urls.1" in caplog.text)
    assert SECRET not in caplog.text.replace(f"POST /{SECRET}", "")


def test_what_is_no_address_is_refused_and_not_shown(tmp_path: Path, caplog: Any) -> None:
    with pytest.raises(ConfigError, match=r"notify\.urls\.1: is not an address") as caught:
        notifier(Place(tmp_path), "json://localhost/", f"nothing://{SECRET}")
    assert SECRET not in str(caught.value) + caplog.text


def test_a_proposal_is_told_of_once(tmp_path: Path, model_folder: Make) -> None:
    setting, told = Setting(tmp_path, model_folder("llama")), []
    for _ in range(2):  # a restart
        site = asking(setting)
        site.notify = lambda kept: told.append(kept.proposal.seed)
        for seed in (0, 0, 1):
            with pytest.raises(PausedError):
                site.consider(setting.change(seed=seed))
        site.close()
    assert told == [0, 1]
    asked = setting.asked(setting.change(seed=2))
    Orders.change(setting.folder / "state", lambda stands: stands.approving(asked, "a person"))
    site = asking(setting)
    site.notify = lambda kept: pytest.fail("nobody waits")
    site.consider(setting.change(seed=2))
    site.close()
