"""The site's page in a real browser: keyboard, screen reader, narrow, dark, on paper."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedpriv_client.orders import Orders
from tests.client.browser import Browser, needed
from tests.client.page_setting import PROPOSAL, Place

pytestmark = pytest.mark.slow
SERVE = "from fedpriv_client.cli import main; main()"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, alone=60.0).with_history()


@pytest.fixture
def address(place: Place) -> Iterator[str]:
    """Of the page, served by the command, with the token."""
    needed()
    command = [sys.executable, "-c", SERVE, "serve-page", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--config", str(place.config)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        where = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", where)
        assert str(place.state / "page.token") in process.stdout.readline()
        token = (place.state / "page.token").read_text()
        yield where.replace("http://", f"http://anybody:{token}@")
    finally:
        process.terminate()
        assert process.wait() == 130


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path)
    yield made
    made.close()


def test_a_job_is_approved_with_the_keyboard_alone(
    place: Place, address: str, browser: Browser
) -> None:
    """Without a script, and without a request to anybody else."""
    browser.without_scripts()
    browser.open(address)
    focused = []
    while not focused or not focused[-1].startswith("Approve"):
        browser.key("Tab")
        focused.append(
            browser.value("document.activeElement.ariaLabel || document.activeElement.innerText")
        )
        assert len(focused) < 9, focused
    assert focused == ["To the page's content", f"Approve job {PROPOSAL.job_id}"]
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.key("Enter", loads=True)
    assert PROPOSAL.digest() in Orders.read(place.state).approved
    assert "No job waits for your decision." in browser.value("document.body.innerText")
    assert {urlsplit(url).hostname for url in browser.asked} == {"127.0.0.1"}
    assert {urlsplit(url).path for url in browser.asked} <= {"/", "/approve", "/favicon.ico"}
    assert [text for text in browser.complaints if "favicon" not in text] == []


def test_a_screen_reader_says_what_is_there(address: str, browser: Browser) -> None:
    browser.open(address)
    heard = browser.heard()
    roles = [role for role, _ in heard]
    assert roles.count("main") == 1
    for name in ("What is left for life", "Waiting for your decision", "Jobs"):
        assert ("heading", name) in heard and ("region", name) in heard
    buttons = [name for role, name in heard if role == "button"]
    assert buttons == [f"Approve job {PROPOSAL.job_id}", f"Refuse job {PROPOSAL.job_id}"]
    assert ("rowheader", "With trust in most sites") in heard
    assert ("columnheader", "Left for further jobs") in heard
    levels = browser.value("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and 1 not in levels[1:]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.value("document.documentElement.lang") == "en"


@pytest.mark.parametrize("width", [320, 480, 760, 1400])
def test_it_fits_any_width(address: str, browser: Browser, width: int) -> None:
    browser.resize(width)
    browser.open(address)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(
        "[...document.querySelectorAll('button')].every(b => b.getBoundingClientRect().right"
        f" <= {width})"
    )


def test_it_is_dark_for_who_likes_it_and_prints_without_buttons(
    address: str, browser: Browser
) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.open(address)
    light = browser.value(colour)
    browser.media(dark=True)
    assert browser.value(colour) != light
    browser.media("print")
    shown = "getComputedStyle(document.querySelector('.buttons')).display"
    assert browser.value(shown) == "none"


def test_without_the_token_a_browser_shows_nothing(address: str, browser: Browser) -> None:
    browser.open(re.sub("anybody:[^@]+@", "anybody:wrong@", address))
    assert PROPOSAL.job_id not in browser.value("document.documentElement.innerText")
