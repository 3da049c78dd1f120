"""Runs pytest in copies of the project, two at a time, each in a process of its own.

Reads a line of JSON for each copy, {"files": {path: new text}, "node_ids": […]}, and prints one
when it is done: [number of the line, exit code, what pytest printed]. The processes are forks of
this one, which has imported what is slow to import and nothing of the project. What is not changed
comes compiled, and assertions are not rewritten to explain themselves: a row asks only whether its
test fails.
"""

from __future__ import annotations

import compileall
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import traceback
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[2]
PARTS = ("fedpriv", "client", "server", "strategies", "tests")
ASSETS = Path("fedpriv", "assets")
OURS = (
    *("fedpriv", "fedpriv_audit", "fedpriv_client", "fedpriv_comparison"),
    *("fedpriv_server", "fedpriv_simulation"),
    "fedpriv_strategies",
)
SLOW = (
    *("cryptography.x509", "datasets", "dp_accounting.pld.privacy_loss_distribution", "flwr.app"),
    *("flwr.clientapp", "flwr.serverapp", "http.server", "jinja2", "packaging.requirements"),
    *("peft", "prv_accountant", "pydantic.functional_serializers", "pydantic.main"),
    *("pydantic.types", "scipy.io", "scipy.optimize", "scipy.stats", "sqlite3", "torch"),
    *("transformers", "typer"),
    *("transformers.models.bert.modeling_bert", "transformers.models.llama.modeling_llama"),
)
AT_ONCE = 2
LONGEST = 600  # seconds, for a sabotage that never ends
LONGEST_OF_ALL = 800  # for tests without a sabotage, one of each folder


def compile_to(folder: Path) -> None:
    """The project and its byte code, which a copy keeps as it keeps the times of the files."""
    unwanted = shutil.ignore_patterns("__pycache__", ASSETS.name, Path(__file__).parent.name)
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=unwanted)
    (folder / ASSETS).symlink_to(ROOT / ASSETS)
    shutil.copy(ROOT / "pyproject.toml", folder)
    compileall.compile_dir(folder, quiet=2)


def copy_to(folder: Path, compiled: Path, files: dict[str, str]) -> None:
    """The project with other texts in some of its files; the others are the same by a hard link."""
    shutil.copytree(compiled, folder, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
    for path, text in files.items():
        (folder / path).unlink()
        (folder / path).write_text(text, encoding="utf-8")
        Path(cache_from_source(folder / path)).unlink(missing_ok=True)


def run(compiled: Path, files: dict[str, str], node_ids: list[str]) -> int:
    """The exit code of pytest, in a copy, up to the first test that fails."""
    signal.alarm(LONGEST if files else LONGEST_OF_ALL)
    with TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_to(folder, compiled, files)
        os.chdir(folder)
        sys.path[:0] = paths = [str(folder / p) for p in ("", "client", "server", "strategies")]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for what tests start
        for package in OURS:
            spec = find_spec(package)
            assert package not in sys.modules
            assert spec is not None and spec.origin is not None
            assert Path(spec.origin).is_relative_to(folder), f"{spec.origin} is not of the copy"
        options = "-x -q --tb=short --color=no -p no:cacheprovider --assert=plain --basetemp=tmp"
        return int(pytest.main([*options.split(), *node_ids]))


def fork(compiled: Path, order: dict[str, Any], output: Path) -> int:
    """The process that carries an order out, and writes what it prints into a file."""
    child = os.fork()
    if child:
        return child
    code = 70  # none of pytest's
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = run(compiled, **order)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for module in SLOW:
        importlib.import_module(module)
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    sys.dont_write_bytecode = True
    gc.freeze()  # else each fork would look for garbage among all of that
    settings.register_profile("no shrinking", phases=[Phase.explicit, Phase.generate])
    settings.load_profile("no shrinking")
    orders = list(enumerate(map(json.loads, sys.stdin)))
    running: dict[int, int] = {}
    with TemporaryDirectory() as name, TemporaryDirectory() as output:
        compiled = Path(name).resolve()
        compile_to(compiled)
        while orders or running:
            while orders and len(running) < AT_ONCE:
                number, order = orders.pop(0)
                running[fork(compiled, order, Path(output, str(number)))] = number
            child, status = os.wait()
            number = running.pop(child)
            text = Path(output, str(number)).read_text(encoding="utf-8", errors="replace")
            print(json.dumps([number, os.waitstatus_to_exitcode(status), text]), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # whoever asked has stopped
        main()
