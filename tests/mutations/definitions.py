"""Finds what our packages define by its name, wherever it stands."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("fedpriv", "client", "server", "strategies", "lab")  # the latter four hold packages
Function = ast.FunctionDef | ast.AsyncFunctionDef


class ChangeError(Exception):
    """A change that can't be made; says where, and what to do."""


@dataclass(frozen=True)
class Definition:
    """A function, method, class or constant as it stands in its file."""

    name: str  # qualified, such as "Ledger.reserve_all"
    module: str  # dotted
    path: Path
    node: ast.stmt

    def __str__(self) -> str:
        return f"{self.name} ({self.module})"

    @functools.cached_property
    def text(self) -> str:
        """Its code, without comments and in one way of writing."""
        return ast.unparse(self.node)

    def source_with(self, node: ast.stmt) -> str:
        """The whole file, with another definition in the place of this one."""
        lines = self.path.read_text(encoding="utf-8").split("\n")
        decorators = getattr(self.node, "decorator_list", [])
        start = min(part.lineno for part in (self.node, *decorators)) - 1
        new = _indented(node, self.node.col_offset)
        return "\n".join([*lines[:start], *new, *lines[self.node.end_lineno :]])


@functools.cache
def definitions(root: Path) -> dict[str, tuple[Definition, ...]]:
    """Everything defined in our packages under `root`, by its qualified name."""
    found: dict[str, tuple[Definition, ...]] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(parts if package == "fedpriv" else parts[1:])
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for name, node in _defined(tree, "", constants=True):
                new = Definition(name, module.removesuffix(".__init__"), path, node)
                found[name] = (*found.get(name, ()), new)
    return found


def find(root: Path, name: str, module: str | None = None) -> Definition:
    """The one definition of that qualified name.

    Args:
        module: the last part, or parts, of the dotted name of its module.

    Raises:
        ChangeError: there is none, or there are several.
    """
    known = definitions(root)
    found = [d for d in known.get(name, ()) if f".{d.module}".endswith(f".{module or d.module}")]
    if len(found) == 1:
        return found[0]
    where = "" if module is None else f" in a module {module}"
    if found:
        raise ChangeError(
            f"{len(found)} definitions are called {name}{where}: {', '.join(map(str, found))}."
            ' Add the last part of the right module\'s name: module = "…".'
        )
    last = name.rpartition(".")[2]
    alike = [str(d) for key in known if key.rpartition(".")[2] == last for d in known[key]]
    raise ChangeError(
        f"Nothing is called {name}{where}. Write its new name, or that of the function which"
        f" has its code now. What ends in {last}: {', '.join(alike) or 'nothing'}."
    )


def mentions(root: Path, text: str) -> list[Definition]:
    """The innermost definitions whose code holds a text; of one line, as `ast.unparse` has it."""
    holding = [d for same in definitions(root).values() for d in same if text in d.text]
    outer = {(d.path, d.name.rpartition(".")[0]) for d in holding}
    return [d for d in holding if (d.path, d.name) not in outer]


def _defined(parent: ast.AST, prefix: str, constants: bool) -> Iterator[tuple[str, ast.stmt]]:
    """Qualified names and what they stand for; variables of functions are left out."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Function | ast.ClassDef):
            if "overload" not in map(ast.unparse, node.decorator_list):
                yield prefix + node.name, node
                in_class = constants and isinstance(node, ast.ClassDef)
                yield from _defined(node, f"{prefix}{node.name}.", in_class)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from ((prefix + name, node) for name in names if constants)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _defined(node, prefix, constants)


def _indented(node: ast.stmt, columns: int) -> list[str]:
    """The lines of a statement that stands so far to the right; what is in strings stays."""
    for _ in range(columns // 4):
        node = ast.If(test=ast.Constant(value=True), body=[node], orelse=[])
    lines = ast.unparse(ast.fix_missing_locations(node)).split("\n")
    while lines[0].strip() in ("", "if True:"):
        del lines[0]
    return lines
