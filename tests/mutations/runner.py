"""Runs tests on changed code, two at a time, each in a fork of one process.

That process has imported the project and collected the tests. A fork gives the functions that it
changes new code, in place: whoever holds such a function, by whatever name or below whatever
decorator, then calls the new code. So nothing is imported again, and nothing has to be undone.

Reads a line of JSON for each fork, {"changes": […], "node_ids": […]}, and prints one when it is
done: [number of the line, the tests that failed, what was printed]. A change is {"names": the
qualified ones of functions or constants, "module", "path", "text": the whole file after the
change}. Assertions are not rewritten to explain themselves: a row asks only whether its test fails.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[2]
AT_ONCE = 2
Order = dict[str, Any]
Change = dict[str, Any]
Functions = dict[tuple[str, str], list[tuple[int, FunctionType]]]


class Runner:
    """A plugin of pytest that carries orders out in place of the loop over all tests."""

    def __init__(self, orders: list[Order]) -> None:
        self.orders = orders
        self.failed: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from tests.network.network_processes import HEAVY

        changed = {change["module"] for order in self.orders for change in order["changes"]}
        for module in (*HEAVY, *changed):
            importlib.import_module(module)
        self.functions = functions()
        gc.collect()
        gc.freeze()  # else each fork would look for garbage among all of that
        waiting, running = list(enumerate(self.orders)), dict[int, int]()
        with tempfile.TemporaryDirectory() as name:
            while waiting or running:
                while waiting and len(running) < AT_ONCE:
                    number, order = waiting.pop(0)
                    running[self.fork(order, session, Path(name, str(number)))] = number
                child, _ = os.wait()
                number = running.pop(child)
                folder = Path(name, str(number))
                text = (folder / "output").read_text(errors="replace")
                failed = folder / "failed"
                told = json.loads(failed.read_text()) if failed.exists() else ["it ended early"]
                print(json.dumps([number, told, text]), file=sys.__stdout__, flush=True)
                shutil.rmtree(folder, ignore_errors=True)  # or all would be in memory at once
        return True

    def fork(self, order: Order, session: pytest.Session, folder: Path) -> int:
        """The process that runs an order's tests, up to the first that fails."""
        folder.mkdir()
        child = os.fork()
        if child:
            return child
        try:
            for number, path in enumerate(("/dev/null", folder / "output", folder / "output")):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
            os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = str(folder)
            tempfile.tempdir = None  # asks the environment again
            for change in order["changes"]:
                apply(change, self.functions)
            # Some tests look at the sources.
            texts = {ROOT / change["path"]: change["text"] for change in order["changes"]}
            read = Path.read_text
            Path.read_text = lambda path, *args, **how: texts.get(path) or read(path, *args, **how)
            items = [i for node_id in order["node_ids"] for i in named(session, node_id)]
            for item, following in zip(items, [*items[1:], None], strict=True):
                if not self.failed:
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            (folder / "failed").write_text(json.dumps(self.failed))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            before = "" if report.when == "call" else f"{report.when} of "
            self.failed.append(f"{before}{report.nodeid}")
            print(report.longreprtext)


def named(session: pytest.Session, node_id: str) -> list[pytest.Item]:
    """The test of that node id, or without an id of its parameters those of all of them."""
    found = [i for i in session.items if node_id in (i.nodeid, i.nodeid.partition("[")[0])]
    assert found, f"there is no test {node_id}"
    return found


def functions() -> Functions:
    """Every function there is of our files, by file and name, with the line where it began."""
    found: Functions = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(f"{ROOT}/"):
            code = thing.__code__
            found[code.co_filename, name_of(code)].append((code.co_firstlineno, thing))
    return found


def apply(change: Change, known: Functions) -> None:
    """Let a change be what this process executes."""
    path = str(ROOT / change["path"])
    before = codes(compile(Path(path).read_text(encoding="utf-8"), path, "exec"))
    after = codes(compile(change["text"], path, "exec"))
    for name in change["names"]:
        if name not in before:
            bind(name, change)
            continue
        there = False
        for key, old in before.items():  # a function is also part of what it stands in
            if f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}."):
                lines = [code.co_firstlineno for code in old]
                for line, function in known[path, key]:
                    function.__code__ = after[key][lines.index(line)]
                    there = True
        assert there, f"nothing has the code of {name}"


def bind(name: str, change: Change) -> None:
    """Let a constant have its new value, wherever it is known by its name."""
    module = sys.modules[change["module"]]
    old, scope = vars(module)[name], dict(vars(module))
    exec(change["text"], scope)
    for other in list(sys.modules.values()):
        if vars(other).get(name) is old:
            setattr(other, name, scope[name])


def codes(code: CodeType) -> dict[str, list[CodeType]]:
    """All that is compiled to code of its own, by its name."""
    found: dict[str, list[CodeType]] = defaultdict(list)
    todo = [code]
    while todo:
        inner = [part for part in todo.pop(0).co_consts if isinstance(part, CodeType)]
        for part in inner:
            found[name_of(part)].append(part)
        todo += inner
    return found


def name_of(code: CodeType) -> str:
    """The qualified name, as `definitions.py` has it."""
    return code.co_qualname.replace(".<locals>", "")


def main() -> None:
    orders = list(map(json.loads, sys.stdin))
    settings.register_profile(
        "of a sabotage", phases=[Phase.explicit, Phase.generate], database=None
    )
    settings.load_profile("of a sabotage")
    sys.dont_write_bytecode = True
    options = ["-n0", "-m", "", "-s", "-q", "-p", "no:cacheprovider", "--assert=plain"]
    options.append("--tb=native")  # else the files are parsed for each line of a trace
    files = sorted({n.partition("::")[0] for order in orders for n in order["node_ids"]})
    sys.stdout = sys.stderr  # what pytest says is not what was asked for
    pytest.main([*options, *files], plugins=[Runner(orders)])


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # whoever asked has stopped
        main()
