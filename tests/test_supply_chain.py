"""Nothing that arrives is run: no pickles, no remote code, no downloads while it works."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "fedpriv",
    "client/fedpriv_client",
    "lab/fedpriv_audit",
    "lab/fedpriv_comparison",
    "server/fedpriv_server",
    "lab/fedpriv_simulation",
    "strategies/fedpriv_strategies",
]
RUNS_CODE = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "runpy", "shelve"}
CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "unsafe_load"}


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def faults(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = {name.name.partition(".")[0] for name in names} & RUNS_CODE
                yield from (f"imports {name}" for name in found)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in RUNS_CODE:
                yield f"imports {module}"
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield f"calls {name}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)):
                if name in CALLS - {"compile", "eval"} or (owner, name) in {
                    ("torch", "load"),
                    ("yaml", "load"),
                }:
                    yield f"calls {owner}.{name}"
            case ast.keyword(arg="trust_remote_code" | "allow_pickle" | "shell", value=value):
                if ast.unparse(value) != "False":
                    yield f"passes {ast.unparse(node)}"
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    named = key is not None and ast.unparse(key) == "'trust_remote_code'"
                    said = ast.unparse(value)
                    of_a_table = said.startswith(("(", "Only("))  # what arguments are taken
                    if named and not of_a_table and said != "False":
                        yield f"passes {said} as trust_remote_code"


@pytest.mark.slow
def test_no_source_runs_what_it_reads() -> None:
    assert [f"{path}: {fault}" for path, tree in sources() for fault in faults(tree)] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from dill import loads",
        "torch.load(path)",
        "eval(text)",
        "os.system(text)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=wanted)",
        "options = {'trust_remote_code': True}",
        "subprocess.run(text, shell=True)",
    ],
)
def test_such_a_source_would_be_found(text: str) -> None:
    assert list(faults(ast.parse(text)))


HOOK = """
import sys

def refuse(what):
    with open({asked!r}, "a") as stream:
        stream.write(what + "\\n")
    raise ConnectionError(what)

def watch(event, arguments):
    if event == "socket.connect":
        host = arguments[1][0] if isinstance(arguments[1], tuple) else "127.0.0.1"
        if host not in ("127.0.0.1", "::1", "localhost"):
            refuse(f"a connection to {{host}}")
    if event == "socket.getaddrinfo" and arguments[0] not in ("127.0.0.1", "::1", "localhost", ""):
        refuse(f"a look-up of {{arguments[0]}}")

sys.addaudithook(watch)
"""


def watched(folder: Path) -> dict[str, str]:
    """An environment in which Python refuses what would leave the machine, and writes it down."""
    (folder / "sitecustomize.py").write_text(HOOK.format(asked=str(folder / "asked")))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def test_a_connection_would_be_seen(tmp_path: Path) -> None:
    code = (
        "import contextlib, socket\n"
        "with contextlib.suppress(Exception):\n"
        "    socket.create_connection(('192.0.2.1', 80), 1)"
    )
    subprocess.run([sys.executable, "-c", code], env=watched(tmp_path), check=True)
    assert (tmp_path / "asked").read_text() == "a look-up of 192.0.2.1\n"


@pytest.mark.slow
def test_a_simulation_asks_nobody_for_anything(
    federation: Callable[..., Any], tmp_path: Path
) -> None:
    program = Path(sys.executable).parent / "fedpriv"
    done = subprocess.run(
        [str(program), "simulate", str(federation(rounds=1)), "--out", str(tmp_path / "run")],
        env=watched(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "asked").exists(), (tmp_path / "asked").read_text()
    assert (tmp_path / "run" / "report.html").exists()
