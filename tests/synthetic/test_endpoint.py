"""A service that answers, fails, is slow, or talks nonsense: a real one on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import ConfigError, RoundError
from fedpriv.synthetic.config import GeneratorSection
from fedpriv.synthetic.endpoint import ATTEMPTS, endpoint
from tests.waiting import CEILING

Answer = tuple[int, bytes]


def text(words: str) -> Answer:
    return 200, json.dumps({"choices": [{"message": {"content": words}}]}).encode()


class Service:
    """Says what `answer` says to the n-th request; keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Callable[[int, dict[str, Any]], Answer] = lambda n, body: text(
            f"about {body['messages'][0]['content']} {body['seed'] % 7}"
        )
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        outer, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    outer.bodies.append(body)
                    outer.keys.append(self.headers.get("authorization"))
                    number = len(outer.bodies)
                status, content = outer.answer(number, body)
                self.send_response(status if self.path == "/v1/chat/completions" else 404)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.server.shutdown()
    made.server.server_close()


def asking(service: Service, cache: Path, **settings: Any) -> Callable[..., list[str]]:
    section = GeneratorSection(
        kind="endpoint", model="m", describe="a note", **{"url": service.url, **settings}
    )
    return endpoint(section, longest=64, cache=cache, pause=0.01)


def test_every_instruction_is_answered_in_order(service: Service, tmp_path: Path) -> None:
    found = asking(service, tmp_path)([f"note {i}" for i in range(20)], "s")
    assert [one.rsplit(" ", 1)[0] for one in found] == [f"about note {i}" for i in range(20)]
    assert {body["model"] for body in service.bodies} == {"m"}
    assert {body["max_tokens"] for body in service.bodies} == {64}
    assert len({body["seed"] for body in service.bodies}) == 20


def test_nothing_is_asked_twice(service: Service, tmp_path: Path) -> None:
    first = asking(service, tmp_path)(["a", "a", "b"], "s")
    assert len(service.bodies) == 3  # the same words twice are two records
    assert asking(service, tmp_path)(["a", "a", "b"], "s") == first
    assert len(service.bodies) == 3
    asking(service, tmp_path)(["a"], "another seed")
    assert len(service.bodies) == 4


def test_the_key_comes_from_the_environment(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_KEY", "secret-key")
    asking(service, tmp_path, key_env="OUR_KEY")(["a"], "s")
    asking(service, tmp_path, key_env="NO_KEY")(["b"], "s")
    assert service.keys == ["Bearer secret-key", None]
    assert not [path for path in tmp_path.rglob("*") if "secret-key" in path.read_text()]


@pytest.mark.parametrize("url", ["http://localhost:80a/v1", "https://[::1/v1"])
def test_an_address_that_is_none_is_named(service: Service, tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"synthetic\.generator\.url"):
        asking(service, tmp_path, url=url)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_heal_is_asked_again(service: Service, tmp_path: Path, status: int) -> None:
    service.answer = lambda n, body: (status, b"busy") if n < ATTEMPTS else text("at last")
    assert asking(service, tmp_path)(["a"], "s") == ["at last"]
    service.answer = lambda n, body: (status, b"busy")
    with pytest.raises(RoundError, match=rf"no answer in {ATTEMPTS} attempts \(HTTP {status}\)"):
        asking(service, tmp_path)(["b"], "s")


def test_what_is_refused_is_not_asked_again(service: Service, tmp_path: Path) -> None:
    service.answer = lambda n, body: (401, b"who are you")
    with pytest.raises(RoundError, match="HTTP 401"):
        asking(service, tmp_path)(["a"], "s")
    assert len(service.bodies) == 1


def test_a_service_that_is_down_or_slow_is_named(service: Service, tmp_path: Path) -> None:
    end = threading.Event()
    service.answer = lambda n, body: text("late" if end.wait(CEILING) else "never")
    with pytest.raises(RoundError, match="ReadTimeout"):
        asking(service, tmp_path, timeout=0.05)(["a"], "s")
    end.set()
    with pytest.raises(RoundError, match=r"127\.0\.0\.1:9/v1/.*ConnectError"):
        asking(service, tmp_path, url="http://127.0.0.1:9/v1")(["a"], "s")


@pytest.mark.parametrize(
    "content",
    [b"{}", b"[]", b'{"choices": []}', b'{"choices": [{"message": {"content": null}}]}', b"3"],
)
def test_an_answer_without_text_is_empty(service: Service, tmp_path: Path, content: bytes) -> None:
    service.answer = lambda n, body: (200, content)
    assert asking(service, tmp_path)(["a"], "s") == [""]


def test_an_answer_that_is_no_json_is_asked_again(service: Service, tmp_path: Path) -> None:
    service.answer = lambda n, body: (200, b"<html>") if n == 1 else text("b")
    assert asking(service, tmp_path)(["a"], "s") == ["b"]
