"""The rows of `sabotages.toml`, which says how they are written."""

from __future__ import annotations

import builtins
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from symtable import symtable
from typing import Any

from tests.mutations.change import Change
from tests.mutations.definitions import ChangeError, Definition, find, mentions

FILE = Path(__file__).with_name("sabotages.toml")


@dataclass(frozen=True)
class Sabotage:
    """One row of the table; `caught_by` is the node id of the test that has to go red."""

    law: str
    what: str
    caught_by: str
    function: str
    module: str | None
    change: Change

    @classmethod
    def of(
        cls,
        *,
        law: str,
        what: str,
        caught_by: str,
        function: str,
        module: str | None = None,
        **kind: Any,
    ) -> Sabotage:
        return cls(law, what, caught_by, function, module, Change(**kind))

    def applied(self, root: Path) -> tuple[Definition, str]:
        """What the sabotage changes in the project under `root`, and the new text of its file.

        Raises:
            ChangeError: the row does not apply. Names it, the function, what is there, and where
                else the code may be.
        """
        try:
            definition = find(root, self.function, self.module)
            text = self.change.apply(definition)
            if names := unknown_names(text):
                raise ChangeError(f"its new code uses {names}, which its module does not have.")
            return definition, text
        except ChangeError as error:
            raise ChangeError(
                f"{FILE.name}, the row {self.what!r}, function {self.function}: {error}"
                + self._hint(root)
            ) from None

    def _hint(self, root: Path) -> str:
        with suppress(ChangeError):
            if begins := self.change.begins:
                found = ", ".join(map(str, mentions(root, begins))) or "nowhere"
                return f"\nWhere `{begins}` is: {found}."
        return ""


def unknown_names(text: str) -> str:
    """The names that a module uses and neither defines nor imports, with commas between."""
    whole = symtable(text, "", "exec")
    known = {
        *dir(builtins),
        "__file__",
        *(one.get_name() for one in whole.get_symbols() if one.is_local()),
    }
    tables, used = [whole], set[str]()
    while tables:
        tables += (table := tables.pop()).get_children()
        used |= {one.get_name() for one in table.get_symbols() if one.is_global()}
    return ", ".join(sorted(used - known))


def read_table(text: str) -> list[Sabotage]:
    """The rows of a table in TOML.

    Raises:
        ChangeError: a row has another key than it may have, or lacks one. Names the row.
    """
    rows = []
    for row in tomllib.loads(text)["sabotage"]:
        try:
            rows.append(Sabotage.of(**row))
        except TypeError as error:
            raise ChangeError(f"{FILE.name}, the row {row.get('what')!r}: {error}") from None
    return rows
