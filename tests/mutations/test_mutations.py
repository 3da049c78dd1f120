"""Each sabotage of the table breaks a privacy law in a process, and a test goes red there."""

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
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mutations.definitions import ChangeError, Function, find
from tests.mutations.table import FILE, Sabotage, read_table

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = read_table(FILE.read_text(encoding="utf-8"))
SOURCES = os.pathsep.join(
    str(ROOT / room) for room in ("", "client", "server", "strategies", "lab")
)
ONE_OF_EACH_FOLDER = list(
    {Path(row.caught_by.partition("::")[0]).parent: row.caught_by for row in TABLE}.values()
)
Result = tuple[list[str], str]  # the tests that failed, and what was printed


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
            changes = [change(row)] if row else unchanged()
            orders.append(json.dumps({"changes": changes, "node_ids": node_ids}) + "\n")
            asked.append(row)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment["PYTHONPATH"] = SOURCES  # the functions of these files change, not installed ones
    place = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # as of other tests
    runner = subprocess.Popen(
        [sys.executable, str(HERE / "runner.py")],
        cwd=ROOT,
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
            number, failed, text = json.loads(line)
            done[asked[number]] = failed, text
        return done[row]

    yield wait
    if len(done) < len(asked):
        runner.send_signal(signal.SIGINT)  # lets it remove its folders
    runner.wait()


def change(row: Sabotage) -> dict[str, object]:
    definition, text = row.applied(ROOT)
    path = definition.path.relative_to(ROOT).as_posix()
    return {"names": [definition.name], "module": definition.module, "path": path, "text": text}


def unchanged() -> list[dict[str, object]]:
    """Each function of the table with new code, of other lines, that does what the old one does."""
    names: dict[tuple[Path, str], set[str]] = defaultdict(set)
    for row in TABLE:
        found = find(ROOT, row.function, row.module)
        if isinstance(found.node, Function):
            names[found.path, found.module].add(found.name)
    return [
        {
            "names": sorted(found),
            "module": module,
            "path": path.relative_to(ROOT).as_posix(),
            "text": ast.unparse(ast.parse(path.read_text(encoding="utf-8"))),
        }
        for (path, module), found in names.items()
    ]


def named(sabotage: Sabotage) -> str:
    return re.sub(r"\W+", "-", sabotage.what)


@pytest.mark.slow
@pytest.mark.timeout(900)  # some twenty tests in one process
def test_with_new_code_that_does_the_same_a_test_of_each_folder_is_green(
    result_of: Callable[[None], Result],
) -> None:
    """So giving functions new code makes none fail by itself."""
    failed, text = result_of(None)
    assert not failed, text


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
@pytest.mark.slow
def test_a_sabotage_is_caught(sabotage: Sabotage, result_of: Callable[[Sabotage], Result]) -> None:
    sabotage.applied(ROOT)
    failed, text = result_of(sabotage)
    assert len(failed) == 1 and failed[0].startswith(sabotage.caught_by), text


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
def test_a_row_changes_the_code_that_is_there(sabotage: Sabotage) -> None:
    definition, text = sabotage.applied(ROOT)
    compile(text, definition.path, "exec")
    assert not definition.path.is_relative_to(ROOT / "tests")


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
def test_a_row_names_a_test_that_is_there(sabotage: Sabotage) -> None:
    path, _, name = sabotage.caught_by.partition("[")[0].partition("::")
    tests = named_tests(ROOT / path)
    assert name in tests, f"{sabotage.what}: {path} has no test {name}."
    assert "nightly" not in tests[name], f"{sabotage.what}: {name} has to pass before a change."


@functools.cache
def named_tests(path: Path) -> dict[str, str]:
    """The tests of a file by their names, as they are in node ids, and how they are marked."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    assigned = [ast.unparse(node) for node in nodes if isinstance(node, ast.Assign)]
    of_all = [text for text in assigned if text.startswith("pytestmark")]
    found = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {n.name: ", ".join([*of_all, *map(ast.unparse, n.decorator_list)]) for n in found}


def test_every_law_has_its_sabotages() -> None:
    text = (
        (ROOT / "docs/explanation/privacy.md").read_text(encoding="utf-8").split("## Law by law")[1]
    )
    laws = re.findall(r"^\| (\d+ .+?) \|", text, flags=re.MULTILINE)
    assert len(laws) == 19
    assert {row.law for row in TABLE} == set(laws)
    assert len({row.what for row in TABLE}) == len(TABLE)
