"""A real browser without a window, steered by the protocol of its developers' tools."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from websockets.sync.client import connect

from tests.waiting import CEILING, wait_until

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
)


def needed() -> str:
    """The browser's program; skips the test where there is none."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser is installed ({', '.join(PROGRAMS)})")
    return found


class Browser:
    """One page of a browser.

    Attributes:
        asked: URLs that the page has asked for.
        complaints: what the browser had to say against it, such as a policy that was violated.
    """

    def __init__(self, folder: Path, *, width: int = 1100, height: int = 900) -> None:
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
        profile = folder / "browser"
        self._process = subprocess.Popen(
            [needed(), *FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder)},
        )
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self._numbers = itertools.count(1)
        self._open = contextlib.ExitStack()
        self._loaded = False
        try:
            self._socket = self._open.enter_context(connect(self._address(profile), max_size=None))
            for domain in ("Page", "Network", "Log", "Runtime", "Accessibility"):
                self._call(f"{domain}.enable")
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def _address(self, profile: Path) -> str:
        ready = profile / "DevToolsActivePort"
        wait_until(
            lambda: (
                self._process.poll() is not None or (ready.exists() and "\n" in ready.read_text())
            )
        )
        assert self._process.poll() is None, "the browser ended"
        port = ready.read_text().splitlines()[0]
        with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = json.load(answer)
        return next(one["webSocketDebuggerUrl"] for one in pages if one["type"] == "page")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._socket.recv(timeout=CEILING))
            if said.get("id") == number:
                assert "error" not in said, said
                found: dict[str, Any] = said["result"]
                return found
            self._hear(said)

    def _hear(self, said: dict[str, Any]) -> None:
        parameters = said.get("params", {})
        match said.get("method"):
            case "Network.requestWillBeSent":
                self.asked.append(parameters["request"]["url"])
            case "Log.entryAdded":
                entry = parameters["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
            case "Page.loadEventFired":
                self._loaded = True

    def _wait(self) -> None:
        while not self._loaded:
            self._hear(json.loads(self._socket.recv(timeout=CEILING)))

    def open(self, url: str) -> None:
        """Load a page, and wait until it is there."""
        self._loaded = False
        self._call("Page.navigate", url=url)
        self._wait()

    def resize(self, width: int, height: int = 900) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def media(self, kind: str = "", *, dark: bool = False) -> None:
        """See the page on paper (``print``), or as who likes the dark sees it."""
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=kind, features=features)

    def without_scripts(self) -> None:
        self._call("Emulation.setScriptExecutionDisabled", value=True)

    def key(self, name: str, *, loads: bool = False) -> None:
        """Press a key: Tab or Enter.

        Args:
            loads: another page comes of it; wait for that.
        """
        codes = {"Tab": 9, "Enter": 13}
        known = {"key": name, "code": name, "windowsVirtualKeyCode": codes[name]}
        text = {"text": "\r"} if name == "Enter" else {}
        self._loaded = False
        self._call("Input.dispatchKeyEvent", type="keyDown", **known, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **known)
        if loads:
            self._wait()

    def value(self, expression: str) -> Any:
        """What an expression comes to in the page; the developers' tools may always ask."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def heard(self) -> list[tuple[str, str]]:
        """Role and name of all that a screen reader would say, in order."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def picture(self, path: Path) -> None:
        """Take a picture of the whole page."""
        made = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def close(self) -> None:
        self._open.close()
        self._process.terminate()
        self._process.wait()
