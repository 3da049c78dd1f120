"""Each sabotage of the table breaks a privacy law in a copy of the source, and a test goes red."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mutations.definitions import ChangeError
from mutations.table import FILE, Sabotage, read_table

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = read_table(FILE.read_text(encoding="utf-8"))
ONE_OF_EACH_FOLDER = list(
    {Path(row.caught_by.partition("::")[0]).parent: row.caught_by for row in TABLE}.values()
)
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
        node_ids = [row.caught_by] if row else ONE_OF_EACH_FOLDER
        with suppress(ChangeError):  # the row's own test says it
            files = {} if row is None else row.files(ROOT)
            orders.append(json.dumps({"files": files, "node_ids": node_ids}) + "\n")
            asked.append(row)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    place = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # as of other tests
    runner = subprocess.Popen(
        [sys.executable, str(HERE / "runner.py")],
        env={**environment, "OMP_NUM_THREADS": "1", "TMPDIR": place},
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


@pytest.mark.slow
@pytest.mark.timeout(900)  # some twenty tests in one process
def test_in_a_copy_without_a_sabotage_a_test_of_each_folder_is_green(
    result_of: Callable[..., Result],
) -> None:
    """So a copy by itself makes none fail; all of them are run where they are, too."""
    code, text = result_of(None)
    assert code == pytest.ExitCode.OK, text


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
@pytest.mark.slow
def test_a_sabotage_is_caught(sabotage: Sabotage, result_of: Callable[..., Result]) -> None:
    sabotage.files(ROOT)
    code, text = result_of(sabotage)
    red = [line for line in text.splitlines() if line.startswith("FAILED ")]
    print(*red)
    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert len(red) == 1 and red[0].removeprefix("FAILED ").startswith(sabotage.caught_by), text


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
def test_a_row_changes_the_code_that_is_there(sabotage: Sabotage) -> None:
    [(path, text)] = sabotage.files(ROOT).items()
    compile(text, path, "exec")
    assert path.endswith(".py") and not path.startswith("tests/")


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
def test_a_row_names_a_test_that_is_there(sabotage: Sabotage) -> None:
    path, _, name = sabotage.caught_by.partition("[")[0].partition("::")
    assert name in names_of_tests(ROOT / path), f"{sabotage.what}: {path} has no test {name}."


@functools.cache
def names_of_tests(path: Path) -> set[str]:
    """The names of the tests of a file, as they are in node ids."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_every_law_has_its_sabotages() -> None:
    text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8").split("## Law by law")[1]
    laws = re.findall(r"^\| (\d+ .+?) \|", text, flags=re.MULTILINE)
    assert len(laws) == 18
    assert {row.law for row in TABLE} == set(laws)
    assert len({row.what for row in TABLE}) == len(TABLE)
