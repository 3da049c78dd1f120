"""Each sabotage of the table breaks a privacy law in a copy of the source, and a test goes red.

A row of ``sabotages.toml`` puts `new` in the place of `old`, which its file holds exactly once:
when that code moves, the row fails until somebody has looked whether it still says the same.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Sabotage:
    """One row of the table; `caught_by` is the node id of the test that has to go red."""

    law: str
    what: str
    file: str
    old: str
    new: str
    caught_by: str

    @property
    def source(self) -> str:
        """The file as it is."""
        return (ROOT / self.file).read_text(encoding="utf-8")

    @property
    def sabotaged(self) -> str:
        return self.source.replace(self.old, self.new)


TABLE = [
    Sabotage(**row)
    for row in tomllib.loads((HERE / "sabotages.toml").read_text(encoding="utf-8"))["sabotage"]
]

Result = tuple[int, str]  # exit code, and what pytest printed


@pytest.fixture(scope="module")
def result_of(request: pytest.FixtureRequest) -> Iterator[Callable[[Sabotage | None], Result]]:
    """What became of a row that was asked for; None is the source without a sabotage."""
    asked: list[Sabotage | None] = []
    orders = []
    for item in request.session.items:
        if not isinstance(item, pytest.Function) or "result_of" not in item.fixturenames:
            continue
        row = item.callspec.params["sabotage"] if hasattr(item, "callspec") else None
        asked.append(row)
        files = {} if row is None else {row.file: row.sabotaged}
        node_ids = sorted({row.caught_by for row in ([row] if row else TABLE)})
        orders.append(json.dumps({"files": files, "node_ids": node_ids}) + "\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    runner = subprocess.Popen(
        [sys.executable, str(HERE / "runner.py")],
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdin is not None and runner.stdout is not None
    runner.stdin.writelines(orders)
    runner.stdin.close()
    done: dict[Sabotage | None, Result] = {}

    def wait(row: Sabotage | None) -> Result:
        while row not in done:
            line = runner.stdout.readline()
            assert line, "the runner ended early"
            number, code, text = json.loads(line)
            done[asked[number]] = code, text
        return done[row]

    yield wait
    runner.send_signal(signal.SIGINT)  # if it is not done: lets it remove its copies
    runner.wait()


def named(sabotage: Sabotage) -> str:
    return re.sub(r"\W+", "-", sabotage.what)


@pytest.mark.slow  # those that are green there are run by themselves, too
def test_without_a_sabotage_the_same_tests_are_green(result_of: Callable[..., Result]) -> None:
    code, text = result_of(None)
    assert code == pytest.ExitCode.OK, text


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
def test_a_sabotage_is_caught(sabotage: Sabotage, result_of: Callable[..., Result]) -> None:
    assert sabotage.source.count(sabotage.old) == 1
    code, text = result_of(sabotage)
    red = [line for line in text.splitlines() if line.startswith("FAILED ")]
    print(*red)
    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert len(red) == 1 and red[0].removeprefix("FAILED ").startswith(sabotage.caught_by), text


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
def test_a_row_changes_the_code_that_is_there(sabotage: Sabotage) -> None:
    assert sabotage.source.count(sabotage.old) == 1
    compile(sabotage.sabotaged, sabotage.file, "exec")
    assert sabotage.file.endswith(".py") and not sabotage.file.startswith("tests/")


def test_every_law_has_its_sabotages() -> None:
    text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8").split("## Law by law")[1]
    laws = re.findall(r"^\| (\d+ .+?) \|", text, flags=re.MULTILINE)
    assert len(laws) == 16
    assert {row.law for row in TABLE} == set(laws)
    assert len({row.what for row in TABLE}) == len(TABLE)
