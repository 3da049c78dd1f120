"""`docs/deploy.md` from top to bottom, as it stands, on one machine.

A fence says where its lines are typed: ``console`` beside the folders, ``console NAME`` in one of
them. A ``toml PATH`` fence is a whole file, or lines that take the place of those with the same
keys. Comments of the page say what a reader would see: that something ends, is stopped or fails.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_processes import wait_for
from network_proxy import free_port

GUIDE = Path(__file__).parents[2] / "docs" / "deploy.md"
BIN = str(Path(sys.executable).parent)
ROLES = {"", "coordinator", "surgery", "radiology"}
_PART = re.compile(
    r"^```(?P<kind>\w+) ?(?P<where>[\w./-]*)\n(?P<text>.*?)^```$|^<!-- (?P<said>.*?) -->$",
    re.M | re.S,
)
_STAYS = re.compile(r"fedpriv-(server|client) --config \S+( --set \S+)?( --out \S+)?$")


class Consortium:
    """The three folders, and what runs in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = str(free_port())
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "FEDPRIV_CA_PASSPHRASE": "what a reader types when asked",
        }
        self.expected = 0  # exit code of the next block

    def follow(self, guide: str) -> int:
        """Do what the page says; gives the number of commands."""
        commands = 0
        for part in _PART.finditer(guide):
            where, text = part["where"] or "", (part["text"] or "").replace("8443", self.port)
            match part["kind"]:
                case "console":
                    for line in text.splitlines():
                        self._type(line, where)
                        commands += 1
                    self.expected = 0
                case "toml":
                    self._write(self.folder / where, text)
                case None:
                    self._see(part["said"])
        return commands

    def _type(self, line: str, where: str) -> None:
        if _STAYS.fullmatch(line):
            with (self.folder / f"{where}.log").open("ab") as log:
                self.running[where] = subprocess.Popen(
                    shlex.split(line),
                    cwd=self.folder / where,
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                )
            return
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder / where,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == self.expected, f"{where}: {line}\n{done.stdout}{done.stderr}"

    def _write(self, path: Path, text: str) -> None:
        if text.startswith("[") or not path.exists():
            path.write_text(text)
            return
        now = path.read_text()
        for line in text.splitlines():
            key = line.partition(" = ")[0]
            now, changed = re.subn(rf"^(?:#!? )?{key} = .*$", line, now, count=1, flags=re.M)
            assert changed, f"{path} has no line for {key}:\n{now}"
        path.write_text(now)

    def _see(self, said: str) -> None:
        match said.split():
            case ["until:", who, "ends"]:
                code = self.running.pop(who).wait(300)
                assert code == 0, self.log(who)
            case ["until:", who, "says", *words]:
                wait_for(lambda: " ".join(words) in self.log(who), 60, lambda: self.log(who))
            case ["stop:", who]:
                process = self.running.pop(who, None)
                if process is not None:
                    process.send_signal(signal.SIGINT)
                    assert process.wait(60) == 130, self.log(who)
            case ["fails:", code]:
                self.expected = int(code)
            case _:
                raise AssertionError(f"{said!r} means nothing here")

    def log(self, who: str) -> str:
        return (self.folder / f"{who}.log").read_text()


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    made = Consortium(tmp_path)
    yield made
    for process in made.running.values():
        process.kill()
        process.wait()


def test_a_block_is_typed_somewhere() -> None:
    parts = list(_PART.finditer(GUIDE.read_text()))
    assert len(parts) > 30
    assert {part["where"] for part in parts if part["kind"] == "console"} == ROLES
    assert {part["kind"] for part in parts} == {"console", "toml", None}


@pytest.mark.slow
def test_a_consortium_from_nothing(consortium: Consortium) -> None:
    assert consortium.follow(GUIDE.read_text()) > 40
    logs = consortium.log("coordinator")
    assert logs.count("is finished") == 3
    for backup in (consortium.folder / "backup").iterdir():
        assert not backup.stat().st_mode & 0o077
    assert "Traceback" not in logs + consortium.log("surgery") + consortium.log("radiology")
    assert (consortium.folder / "coordinator" / "run-3" / "report.html").exists()
