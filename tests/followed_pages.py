"""Pages of the documentation, done from top to bottom as a reader would.

A fence says where its lines are typed: ``console`` and ``python`` beside the folders, ``console
NAME`` in one of them. A ``toml PATH`` fence is a whole file, or lines that take the place of those
with the same keys. Comments of a page say what a reader would see, that something ends, is stopped
or fails, and what a reader answers to the questions of the next command. All else is read and not
done.

Commands of fedpriv that end are forked (`forked_commands.py`); what stays and what a shell has to
do something for is started as a reader starts it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.forked_commands import command
from tests.waiting import wait_until

BIN = str(Path(sys.executable).parent)
PART = re.compile(
    r"^```(?P<kind>\w+) ?(?P<where>[\w./-]*)\n(?P<text>.*?)^```$|^<!-- (?P<said>.*?) -->$",
    re.M | re.S,
)
_PLAIN = re.compile(r"fedpriv(-server|-client)? [\w ./:=,-]+")  # nothing for a shell to do
_STAYS = re.compile(r"fedpriv-(server|client) --config \S+( --set \S+)?( --out \S+)?$")


class Reader:
    """Somebody at a machine with the folders of a page, and what runs in them.

    Args:
        folder: where everything happens.
        changes: from patterns in what is typed to what is typed instead, such as fewer rounds.
    """

    def __init__(self, folder: Path, changes: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.changes = dict(changes or {})
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "FEDPRIV_CA_PASSPHRASE": "what a reader types when asked",
        }
        self.expected = 0  # exit code of the next block
        self.answers: str | None = None  # to the questions of its commands
        self.shown: list[str] = []  # by each command

    def follow(self, page: str) -> int:
        """Do what the page says; gives the number of commands."""
        commands = 0
        for part in PART.finditer(page):
            where, text = part["where"] or "", part["text"] or ""
            for pattern, instead in self.changes.items():
                text = re.sub(pattern, instead, text, flags=re.M)
            match part["kind"]:
                case "console":
                    for line in text.splitlines():
                        self._type(line, where)
                        commands += 1
                    self.expected, self.answers = 0, None
                case "python":
                    self._run([sys.executable, "-c", text], where, text)
                    commands += 1
                case "toml":
                    self._write(self.folder / where, text)
                case None:
                    self._see(part["said"])
        return commands

    def _type(self, line: str, where: str) -> None:
        folder, environment = self.folder / where, self.environment
        if _STAYS.fullmatch(line):
            self._start(line, where)
        elif _PLAIN.fullmatch(line) and self.answers is None:
            words = shlex.split(line)
            done = command(*words, folder=folder, environment=environment)
            self._look(done, where, line)
        else:
            self._run(["bash", "-c", line], where, line)

    def _start(self, line: str, where: str) -> None:
        with (self.folder / f"{where}.log").open("ab") as log:
            self.running[where] = subprocess.Popen(
                shlex.split(line),
                cwd=self.folder / where,
                env=self.environment,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def _run(self, words: list[str], where: str, said: str) -> None:
        done = subprocess.run(
            words,
            cwd=self.folder / where,
            env=self.environment,
            input=self.answers or "",
            capture_output=True,
            text=True,
        )
        self._look(done, where, said)

    def _look(self, done: subprocess.CompletedProcess[str], where: str, said: str) -> None:
        assert done.returncode == self.expected, f"{where}: {said}\n{done.stdout}{done.stderr}"
        self.shown.append(done.stdout)

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
                code = self.running.pop(who).wait()
                assert code == 0, self.log(who)
            case ["until:", who, "says", *words]:
                wait_until(lambda: " ".join(words) in self.log(who), lambda: self.log(who))
            case ["stop:", who]:
                process = self.running.pop(who, None)
                if process is not None:
                    process.send_signal(signal.SIGINT)
                    assert process.wait() == 130, self.log(who)
            case ["answers:", *_]:
                answers = said.partition(":")[2].split("|")
                self.answers = "".join(f"{answer.strip()}\n" for answer in answers)
            case ["fails:", code]:
                self.expected = int(code)
            case _:
                raise AssertionError(f"{said!r} means nothing here")

    def log(self, who: str) -> str:
        return (self.folder / f"{who}.log").read_text()

    def stop(self) -> None:
        """End whatever still runs."""
        for process in self.running.values():
            process.kill()
            process.wait()
