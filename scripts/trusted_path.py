"""Count the lines of code that a hospital has to trust.

    python scripts/trusted_path.py             # by room
    python scripts/trusted_path.py MODULE …    # of what these modules reach
    python scripts/trusted_path.py --write     # the figures of docs/architecture.md, if none grew
    python scripts/trusted_path.py --check     # 1 if these are not the figures of the page

The lines are those that the process that serves a site reaches, with every method. Blank lines,
comments and docstrings do not count. Imports inside functions do, and so does each package's own
`__init__`. Imports for type checkers do not. What a setting loads by name, such as a reader of
OMOP, is counted by itself.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT, ROOT / "client", ROOT / "server", ROOT / "strategies", ROOT / "lab")
PACKAGES = ("fedpriv", "fedpriv_client", "fedpriv_server", "fedpriv_strategies")
SERVING = ("fedpriv_client.serve",)
# What a site of any federation may load by name: the site's halves of all methods.
BY_NAME = ("fedpriv.methods.dp_lora", "fedpriv.methods.pe_sgd")
# Groups of entry points that settings load.
BY_SETTING = ("fedpriv.parts", "fedpriv.sources")
# Rooms with code that handles a private record before noise is added.
BEFORE_NOISE = (
    "fedpriv.data",
    "fedpriv.gradients",
    "fedpriv.methods",
    "fedpriv.models",
    "fedpriv.privacy.mechanism",
    "fedpriv.private_training",
)
PAGE = ROOT / "docs/architecture.md"
STATED = re.compile(r"\*\*([\d,]+) lines\*\*, of which \*\*([\d,]+)\*\*")
ROW = re.compile(r"^\| ((?:`[^`|]+`(?:, )?)+) \| [\d,]+ \|", re.M)


@cache
def file_of(module: str) -> Path | None:
    """Return the file of one of our modules, or None."""
    for folder in FOLDERS:
        path = folder.joinpath(*module.split("."))
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file() and module.partition(".")[0].startswith("fedpriv"):
                return file
    return None


def reached(*modules: str) -> set[str]:
    """Return all of our modules that these import, directly or not, and these themselves.

    If a package is not imported itself, it runs when a module in it is imported, but its functions
    don't. So the modules that its functions import are not included.
    """
    found, waiting = set[tuple[str, bool]](), [(module, True) for module in modules]
    while waiting:
        module, is_named = waiting.pop()
        if not {(module, True), (module, is_named)} & found and file_of(module) is not None:
            found.add((module, is_named))
            waiting.append((module.rpartition(".")[0], False))
            waiting += [(name, True) for name in imported(module, functions=is_named)]
    return {module for module, _ in found}


@cache
def imported(module: str, *, functions: bool = True) -> tuple[str, ...]:
    """Return the modules that a module imports: everywhere in it, or only outside functions."""
    file = file_of(module)
    assert file is not None
    return tuple(_imports(ast.parse(file.read_text(encoding="utf-8")), functions))


def _imports(node: ast.AST, functions: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for other in child.orelse:
                    yield from _imports(other, functions)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not functions:
                pass
            case ast.Import():
                yield from (name.name for name in child.names)
            case ast.ImportFrom(module=str(source)):
                yield source
                yield from (f"{source}.{name.name}" for name in child.names)
            case _:
                yield from _imports(child, functions)


@cache
def lines_of(module: str) -> int:
    """Count the lines that hold code."""
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
    """Return the room of a module: a package of the library, or another distribution."""
    top, _, rest = module.partition(".")
    return f"{top}.{rest.partition('.')[0]}" if top == "fedpriv" and rest else top


def by_setting(found: set[str]) -> dict[str, int]:
    """Return how many lines each part adds to these modules, by the name of its entry point."""
    with (ROOT / "client" / "pyproject.toml").open("rb") as stream:
        groups = tomllib.load(stream)["project"]["entry-points"]
    points = {name: target for group in BY_SETTING for name, target in groups[group].items()}
    more = {name: reached(target.partition(":")[0]) - found for name, target in points.items()}
    return {name: sum(map(lines_of, modules)) for name, modules in more.items() if modules}


def of_the_page(text: str, found: set[str]) -> str:
    """Return the page with today's figures: both sums, and the rows of its two tables."""
    parts = by_setting(found)

    def rooms(row: re.Match[str]) -> str:
        paths = re.findall(r"`(?:client/)?([^`]+?)(?:\.py)?`", row[1])
        names = [path.replace("/", ".") for path in paths]
        held = [m for m in found if any(m == n or m.startswith(f"{n}.") for n in names)]
        return f"| {row[1]} | {parts.get(paths[0], sum(map(lines_of, held))):,} |"

    both = "**{:,} lines**, of which **{:,}**".format(*sums(found))
    return ROW.sub(rooms, STATED.sub(both, text, count=1))


def sums(found: set[str]) -> tuple[int, int]:
    """Count the lines of these modules, and of those that handle a record before noise is added."""
    before = [module for module in found if module.startswith(BEFORE_NOISE)]
    return sum(map(lines_of, found)), sum(map(lines_of, before))


def main(arguments: list[str]) -> int:
    """Print a line for each room, and the sums; or compare them with those of the page."""
    options = {"--check", "--write"} & {*arguments}
    modules = [name for name in arguments if name not in options]
    found = reached(*(modules or (*SERVING, *BY_NAME)))
    if options:
        text = PAGE.read_text(encoding="utf-8")
        stated = STATED.search(text)
        assert stated is not None, f"{PAGE}: says no figures"
        most = [int(figure.replace(",", "")) for figure in stated.groups()]
        now, page = sums(found), of_the_page(text, found)
        print("{:,} lines, {:,} before noise; the page has {:,} and {:,}".format(*now, *most))
        if any(a > b for a, b in zip(now, most, strict=True)):
            print("They grew: delete as much, or write the new figures by hand and say why.")
            return 1
        if "--write" in options:
            PAGE.write_text(page, encoding="utf-8")
        elif page != text:
            print(f"{PAGE.name} is behind: python scripts/trusted_path.py --write")
            return 1
        return 0
    rooms: Counter[str] = Counter()
    for module in found:
        rooms[room_of(module)] += lines_of(module)
    for room, lines in rooms.most_common():
        print(f"{lines:6,}  {room}")
    every, before = sums(found)
    print(f"{every:6,}  in {len(found)} files, {before:,} of them before noise")
    for name, lines in by_setting(found).items():
        print(f"{lines:6,}  more with {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
