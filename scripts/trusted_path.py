"""Count the lines of code that a hospital has to trust.

    python scripts/trusted_path.py             # by room
    python scripts/trusted_path.py MODULE …    # of what these modules reach
    python scripts/trusted_path.py --check     # 1 if they are more than docs/architecture.md says

Counted is what the process that serves a site reaches, with every method. Blank lines, comments
and docstrings do not count. Imports inside functions do, and so does each package's own
`__init__`; imports for type checkers do not, nor what a site's file has loaded by name, such as a
reader of OMOP.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT, ROOT / "client", ROOT / "server", ROOT / "strategies", ROOT / "lab")
PACKAGES = ("fedpriv", "fedpriv_client", "fedpriv_server", "fedpriv_strategies")
SERVING = ("fedpriv_client.serve",)
# What a site of any federation may load by name: the halves of every method.
BY_NAME = ("fedpriv.methods.dp_lora", "fedpriv.methods.pe_sgd")
# Rooms with code that handles a private record before there is noise.
BEFORE_NOISE = (
    "fedpriv.data",
    "fedpriv.gradients",
    "fedpriv.methods",
    "fedpriv.models",
    "fedpriv.privacy.mechanism",
    "fedpriv.training",
)
PAGE = ROOT / "docs" / "architecture.md"
STATED = re.compile(r"\*\*([\d,]+) lines\*\*, of which \*\*([\d,]+)\*\*")


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of ours."""
    for folder in FOLDERS:
        path = folder.joinpath(*module.split("."))
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file() and module.partition(".")[0].startswith("fedpriv"):
                return file
    return None


def reached(*modules: str) -> set[str]:
    """All modules of ours that these import, directly or not, and themselves."""
    found, waiting = set[str](), [*modules]
    while waiting:
        module = waiting.pop()
        if module in found or file_of(module) is None:
            continue
        found.add(module)
        waiting += [module.rpartition(".")[0], *imported(module)]
    return found - {""}


@cache
def imported(module: str) -> tuple[str, ...]:
    """The modules that one imports, wherever in it."""
    file = file_of(module)
    assert file is not None
    return tuple(_imports(ast.parse(file.read_text(encoding="utf-8"))))


def _imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for other in child.orelse:
                    yield from _imports(other)
            case ast.Import():
                yield from (name.name for name in child.names)
            case ast.ImportFrom(module=str(source)):
                yield source
                yield from (f"{source}.{name.name}" for name in child.names)
            case _:
                yield from _imports(child)


@cache
def lines_of(module: str) -> int:
    """Lines that hold code."""
    file = file_of(module)
    assert file is not None
    text = file.read_text(encoding="utf-8")
    skipped = (
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER, tokenize.ENCODING,
    )  # fmt: skip
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        first = getattr(node, "body", None)
        if isinstance(first, list) and first and isinstance(first[0], ast.Expr):
            value = first[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                held.difference_update(range(value.lineno, (value.end_lineno or 0) + 1))
    return len(held)


def room_of(module: str) -> str:
    """The room that a module stands in: a package of the library, or another distribution."""
    top, _, rest = module.partition(".")
    return f"{top}.{rest.partition('.')[0]}" if top == "fedpriv" and rest else top


def main(arguments: list[str]) -> int:
    """Print a line for each room, and the sums; or compare the sums with those of the page."""
    modules = [name for name in arguments if name != "--check"]
    found = reached(*(modules or (*SERVING, *BY_NAME)))
    rooms: Counter[str] = Counter()
    for module in found:
        rooms[room_of(module)] += lines_of(module)
    before = sum(lines_of(module) for module in found if module.startswith(BEFORE_NOISE))
    if "--check" in arguments:
        stated = STATED.search(PAGE.read_text(encoding="utf-8"))
        assert stated is not None, f"{PAGE}: says no figures"
        most, most_before = (int(figure.replace(",", "")) for figure in stated.groups())
        is_more = sum(rooms.values()) > most or before > most_before
        print(
            f"{sum(rooms.values()):,} lines of {most:,}, {before:,} before noise of {most_before:,}"
        )
        return int(is_more)
    for room, lines in rooms.most_common():
        print(f"{lines:6,}  {room}")
    print(f"{sum(rooms.values()):6,}  in {len(found)} files, {before:,} of them before noise")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
