"""Each sabotage of the table breaks a privacy law in a copy of the source, and a test goes red.

A row of ``sabotages.toml`` puts `new` in the place of `old`, which its file holds exactly once:
when that code moves, the row fails until somebody has looked whether it still says the same.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PARTS = ("fedpriv", "client", "server", "strategies", "tests")
ASSETS = Path("fedpriv", "assets")
LAWS = {
    "nothing free",
    "secret Poisson sampling over units",
    "public divisors",
    "rows are independent",
    "bounded rows",
    "joint noise",
    "committed plans",
    "privatised by type",
    "say what it means",
    "upper bounds",
    "once",
    "the site decides",
    "one population, one ledger",
    "arithmetic",
    "no back door in the lab",
}


@dataclass(frozen=True)
class Sabotage:
    """One row of the table; `caught_by` is the node id of the test that has to go red."""

    law: str
    what: str
    file: str
    old: str
    new: str
    caught_by: str

    def source(self) -> str:
        """The sabotaged file."""
        plain = (ROOT / self.file).read_text(encoding="utf-8")
        assert plain.count(self.old) == 1, f"{self.file}: holds `old` {plain.count(self.old)} times"
        return plain.replace(self.old, self.new)


TABLE = [
    Sabotage(**row)
    for row in tomllib.loads((HERE / "sabotages.toml").read_text(encoding="utf-8"))["sabotage"]
]

# A plugin of the copy's pytest: a test that imports an installed package would prove nothing.
_NOTHING_ELSE = """
from importlib.util import find_spec
from pathlib import Path

for name in ("fedpriv", "fedpriv_client", "fedpriv_server", "fedpriv_simulation",
             "fedpriv_strategies"):
    assert Path(find_spec(name).origin).is_relative_to(Path(__file__).parent), name
"""


def run(*node_ids: str, sabotage: Sabotage | None = None) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the project, stopping at the first that fails."""
    with TemporaryDirectory() as name:
        copy = Path(name).resolve()
        unwanted = shutil.ignore_patterns("__pycache__", ASSETS.name, HERE.name)
        for part in PARTS:
            shutil.copytree(ROOT / part, copy / part, ignore=unwanted)
        (copy / ASSETS).symlink_to(ROOT / ASSETS)
        shutil.copy(ROOT / "pyproject.toml", copy)
        (copy / "nothing_else.py").write_text(_NOTHING_ELSE)
        if sabotage is not None:
            (copy / sabotage.file).write_text(sabotage.source(), encoding="utf-8")
        paths = [str(copy / part) for part in ("", "client", "server", "strategies")]
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        options = "-x -q --tb=short --color=no -p no:cacheprovider -p nothing_else --basetemp=tmp"
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options.split(), *node_ids],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
        )


Results = dict[Sabotage | None, "Future[subprocess.CompletedProcess[str]]"]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """Of whatever was asked for, two at a time, while the tests below wait for theirs."""
    pool, futures = ThreadPoolExecutor(2), Results()
    for item in request.session.items:
        if not isinstance(item, pytest.Function) or "results" not in item.fixturenames:
            continue
        if hasattr(item, "callspec"):
            sabotage = item.callspec.params["sabotage"]
            futures[sabotage] = pool.submit(run, sabotage.caught_by, sabotage=sabotage)
        else:
            futures[None] = pool.submit(run, *sorted({row.caught_by for row in TABLE}))
    yield futures
    pool.shutdown(cancel_futures=True)


def named(sabotage: Sabotage) -> str:
    return re.sub(r"\W+", "-", sabotage.what)


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
def test_a_sabotage_is_caught(sabotage: Sabotage, results: Results) -> None:
    done = results[sabotage].result()
    print(done.stdout)
    red = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert len(red) == 1 and red[0].removeprefix("FAILED ").startswith(sabotage.caught_by)


def test_without_a_sabotage_the_same_tests_are_green(results: Results) -> None:
    done = results[None].result()
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr


@pytest.mark.parametrize("sabotage", TABLE, ids=named)
def test_a_row_changes_the_code_that_is_there(sabotage: Sabotage) -> None:
    compile(sabotage.source(), sabotage.file, "exec")
    assert sabotage.caught_by.split("::")[0] != sabotage.file


def test_every_law_has_its_sabotages() -> None:
    assert {row.law for row in TABLE} == LAWS
    assert len({row.what for row in TABLE}) == len(TABLE)
