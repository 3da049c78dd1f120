"""Changes the syntax tree of a definition, so that formatting and comments play no part."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tests.mutations.definitions import ChangeError, Definition, Function

BLOCKS = ("body", "orelse", "finalbody")  # where a syntax tree holds lists of statements


@dataclass(frozen=True)
class Change:
    """What becomes of a definition: exactly one of `replace` (with `by`), `skip` and `first`.

    Attributes:
        replace: an expression, or statements in a row, that the definition holds exactly once.
        by: what takes its place; statements may give way to nothing.
        all: each place is meant, where there are several.
        skip: the name of a function; the one statement that does nothing but call it is left out.
        first: statements that a function begins with.
    """

    replace: str | None = None
    by: str | None = None
    all: bool = False
    skip: str | None = None
    first: str | None = None

    @property
    def begins(self) -> str | None:
        """How that begins which has to be there, in one line; None if nothing has to.

        Raises:
            ChangeError: it is not Python.
        """
        if self.replace is None:
            return None if self.skip is None else f"{self.skip}("
        return ast.unparse(_parsed(self.replace)).partition("\n")[0] or None

    def apply(self, definition: Definition) -> str:
        """The text of the definition's file after the change.

        Raises:
            ChangeError: the definition does not hold what is to be changed, or holds it more than
                once, or would stay as it is; or this is no change. Shows the definition.
        """
        try:
            return definition.source_with(self.changed(definition.node))
        except ChangeError as error:
            raise ChangeError(
                f"{error}\n{definition.path}:{definition.node.lineno}, {definition.name}:\n"
                + textwrap.indent(definition.text, "    ")
            ) from None

    def changed(self, node: ast.stmt) -> ast.stmt:
        """A changed copy of a definition.

        Raises:
            ChangeError: as `apply`.
        """
        self._check_kind()
        changed = copy.deepcopy(node)
        if self.first is not None:
            _put_first(changed, _parsed(self.first).body)
        elif self.skip is not None:
            self._check_count(_skip(changed, self.skip), f"a call of {self.skip} by itself")
        else:
            assert self.replace is not None and self.by is not None
            count = _replace(changed, _parsed(self.replace).body, _parsed(self.by).body)
            self._check_count(count, f"what is to be replaced, `{self.replace.strip()}`")
        if ast.dump(changed) == ast.dump(node):
            raise ChangeError("The change changes nothing.")
        return changed

    def _check_kind(self) -> None:
        if sum(kind is not None for kind in (self.replace, self.skip, self.first)) != 1:
            raise ChangeError("Expected one of replace (and by), skip and first.")
        if (self.replace is None) != (self.by is None):
            raise ChangeError("Expected replace and by together.")

    def _check_count(self, count: int, what: str) -> None:
        if count == 0:
            raise ChangeError(f"Not there: {what}. Write what is there now, or where it went.")
        if count > 1 and not self.all:
            raise ChangeError(f"There {count} times: {what}. Write more of it, or all = true.")


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(textwrap.dedent(text))
    except SyntaxError as error:
        raise ChangeError(f"Not Python ({error}):\n{text}") from None


def _expression(statements: Sequence[ast.stmt]) -> ast.expr | None:
    """The expression that is all of the statements."""
    match statements:
        case [ast.Expr(value=value)]:
            return value
    return None


def _replace(node: ast.stmt, old: list[ast.stmt], new: list[ast.stmt]) -> int:
    """How often something was replaced: an expression by an expression, else statements."""
    before, after = _expression(old), _expression(new)
    if before is None or after is None:
        return _replace_statements(node, [ast.unparse(statement) for statement in old], new)
    replacer = _Expressions(before, after)
    replacer.visit(node)
    return replacer.count


class _Expressions(ast.NodeTransformer):
    """Replaces an expression, and counts how often it was there."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.kind, self.text, self.new = type(old), ast.unparse(old), new
        self.count = 0

    def visit(self, node: ast.AST) -> ast.AST:
        # As text: whether a name is read or written is not told by the tree of a name alone.
        if type(node) is self.kind and ast.unparse(node) == self.text:
            self.count += 1
            return copy.deepcopy(self.new)
        return self.generic_visit(node)


def _replace_statements(node: ast.stmt, old: list[str], new: list[ast.stmt]) -> int:
    if not old:
        raise ChangeError("Nothing is to be replaced: replace is empty.")
    count = 0
    for block in _blocks(node):
        for start in range(len(block) - len(old), -1, -1):
            end = start + len(old)
            if [ast.unparse(statement) for statement in block[start:end]] == old:
                block[start:end] = copy.deepcopy(new)
                count += 1
    _fill(node)
    return count


def _skip(node: ast.stmt, name: str) -> int:
    """Leaves out what only calls `name`, on whatever object; returns how often it was there."""
    count = 0
    for block in _blocks(node):
        for statement in list(block):
            match statement:
                case ast.Expr(value=ast.Call(func=called)):
                    if f".{ast.unparse(called)}".endswith(f".{name}"):
                        block.remove(statement)
                        count += 1
    _fill(node)
    return count


def _put_first(node: ast.stmt, statements: list[ast.stmt]) -> None:
    if not isinstance(node, Function):
        raise ChangeError("Only a function begins with statements.")
    start = 0 if ast.get_docstring(node) is None else 1
    node.body[start:start] = statements


def _blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    lists = [getattr(part, name, None) for part in ast.walk(node) for name in BLOCKS]
    return [block for block in lists if isinstance(block, list)]


def _fill(node: ast.stmt) -> None:
    """Puts `pass` where something has to be and nothing is left."""
    for part in ast.walk(node):
        body = getattr(part, "body", None)
        if isinstance(body, list) and not body:
            body.append(ast.Pass())
