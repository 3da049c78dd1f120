"""Transformers' own server answers with a site model whoever has the token, on this machine."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient
from transformers import AutoTokenizer

from fedpriv.errors import ConfigError
from fedpriv_client import serve_model
from fedpriv_client.cli import app
from tests.serving.answering import Made, MakeSiteModel

pytest.importorskip("openai", reason="openai is not installed: pip install '.[serving]'")

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
COMMAND = [sys.executable, "-c", "from fedpriv_client.cli import main; main()", "serve-model"]
SECRET = "fever-of-a-patient"
SHORT = {"max_tokens": 4, "temperature": 0.0}


class Served:
    """A server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [*COMMAND, str(folder), "--port", "0"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        assert self.process.stdout is not None
        lines = iter(self.process.stdout.readline, "")
        where = next((line for line in lines if line.startswith("http")), None)
        assert where is not None, self.process.stderr.read()
        self.token = folder.with_name(f".{folder.name}.token")
        shown = {"Authorization": f"Bearer {self.token.read_text()}"}
        self.http = httpx.Client(base_url=where.split()[0], headers=shown, timeout=300)

    def stop(self) -> tuple[int, str]:
        """Press Ctrl-C; returns the exit code, and what was logged."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out + err


@pytest.fixture(scope="module")
def made(
    make_site_model: MakeSiteModel, model_folder: Any, tmp_path_factory: pytest.TempPathFactory
) -> Made:
    """Adapters on a base whose tokenizer has a chat template."""
    base = Path(shutil.copytree(model_folder("llama"), tmp_path_factory.mktemp("chat") / "base"))
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(base)
    return make_site_model(base)


@pytest.fixture(scope="module")
def served(made: Made) -> Iterator[Served]:
    server = Served(made.folder)
    yield server
    server.http.close()
    server.process.kill()
    server.process.communicate()


def test_it_answers_as_openai_does_and_logs_nothing_of_it(made: Made, served: Served) -> None:
    assert served.token.stat().st_mode & 0o777 == 0o600
    [model] = served.http.get("models").json()["data"]
    assert model["id"] == str(made.folder)
    asked = {"model": model["id"], **SHORT}
    text = served.http.post("completions", json={"prompt": SECRET, **asked}).json()
    chat = {"messages": [{"role": "user", "content": SECRET}], **asked}
    said = served.http.post("chat/completions", json=chat).json()
    written = text["choices"][0]["text"]
    assert said["choices"][0]["message"]["content"] == written
    ids = made.worker.base.tokenizer(SECRET, return_tensors="pt")["input_ids"]
    first = made.worker.base.tokenizer.decode(made.mean(input_ids=ids)[0, -1].argmax())
    assert written.startswith(first)
    with served.http.stream("POST", "chat/completions", json=chat | {"stream": True}) as answer:
        chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data")]
    streamed = "".join(one["choices"][0]["delta"].get("content", "") for one in chunks)
    assert streamed and written.startswith(streamed)  # a stream holds half a letter back

    without = httpx.post(f"{served.http.base_url}completions", json={"prompt": SECRET})
    assert without.status_code == 401
    wrong = {"Authorization": "Bearer wrong"}
    assert served.http.get("models", headers=wrong).status_code == 401
    long = served.http.post("completions", json={**asked, "prompt": SECRET * 20})
    assert long.status_code == 400 and "longer than the model reads" in long.json()["error"]
    other = served.http.post("completions", json={**asked, "model": "gpt2", "prompt": SECRET})
    assert other.status_code == 400 and "pinned" in other.text
    bad = served.http.post("completions", json={**asked, "prompt": SECRET, "temperature": SECRET})
    assert bad.status_code == 400
    above = str(served.http.base_url).removesuffix("v1/")
    for path in ("load_model", "reset", "openapi.json", "docs", f"v1/{SECRET}"):
        assert served.http.post(above + path, json={"model": "gpt2"}).status_code == 404

    code, logged = served.stop()
    assert code == 130
    assert SECRET not in logged and written not in logged


@pytest.mark.parametrize("shown", [None, "wrong", "the-token"])
def test_without_the_token_nothing_is_answered(shown: str | None) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("answered")(scope, receive, send)

    client = TestClient(serve_model.Guard(app, "the-token"))
    headers = {} if shown is None else {"Authorization": f"Bearer {shown}"}
    status = {path: client.get(path, headers=headers).status_code for path in ("/health", "/reset")}
    answered = {"/health": 200, "/reset": 404}
    assert status == (answered if shown == "the-token" else dict.fromkeys(status, 401))


def test_a_port_in_use_is_said_so(made: Made) -> None:
    with socket.create_server((serve_model.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port: can't listen there: .* \(got {port}\)"):
            serve_model.serve_model(made.folder, port, None)


def test_that_a_transform_is_not_applied_is_said(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    served: list[Any] = []
    site = SimpleNamespace(site=None, data=SimpleNamespace(transform="deidentify:scrub"))
    monkeypatch.setattr("fedpriv_client.cli._load", lambda config: site)
    monkeypatch.setattr(serve_model, "serve_model", lambda *asked: served.append(asked))
    (tmp_path / "site.toml").touch()
    words = ["serve-model", str(made.folder), "--config", str(tmp_path / "site.toml")]
    app(words, standalone_mode=False)
    assert served == [(made.folder, 8641, None)]
    assert "data.transform (deidentify:scrub)" in capsys.readouterr().err


def test_a_token_that_others_may_read_is_refused(made: Made, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x")
    token.chmod(0o644)
    with pytest.raises(ConfigError, match=f"chmod 600 {token}"):
        serve_model.serve_model(made.folder, 0, token)
    token.write_text("\n")
    token.chmod(0o600)
    with pytest.raises(ConfigError, match="is empty"):
        serve_model.serve_model(made.folder, 0, token)


def test_what_is_no_model_that_writes_is_refused(
    tmp_path: Path, make_site_model: MakeSiteModel
) -> None:
    with pytest.raises(ConfigError, match="holds no site model"):
        serve_model.serve_model(tmp_path, 0, None)
    labels = make_site_model("bert", task="classification")
    with pytest.raises(ConfigError, match=r"labels texts, .* fedpriv-client classify"):
        serve_model.serve_model(labels.folder, 0, None)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.import_utils.is_serve_available", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install 'fedpriv\[serving\]'"):
        serve_model.check_installed()
