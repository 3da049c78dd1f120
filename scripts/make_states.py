#!/usr/bin/env python
"""Write docs/reference/states.md: every state of site, coordinator, job, slot and ledger.

    python scripts/make_states.py             # writes it
    python scripts/make_states.py --check     # 1 if the file is not what would be written

The states are read from the code: from its enumerations, its errors, and the kinds of a ledger's
rows. The texts that people are told about each are in states.toml beside this script. A state
without a row there, a row for a state that is gone, or a word in the code that no enumeration has,
is an error.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from written_page import Row, table, write_or_check

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/states.md"
ROWS = Path(__file__).with_name("states.toml")
TOLD = ("state", "log", "also shown")
TEXTS = {
    "activity": "The log first says what the site does for the server, as in `Computing a step.`",
    "ledger": "In brackets: what `status` and the page show.",
}
HEAD = """\
# States

<!-- Written by scripts/make_states.py, and scripts/states.toml: change those. -->

What the log says of each state, and what `status` and the page show beside its name. The
[glossary](glossary.md) explains words.

On a full disk the site's log, `status` and page say `FOLDER: the disk is full (N bytes are free)`.
The coordinator hears nothing, or only the refusal `failed`.
"""


def states() -> dict[str, tuple[str, Sequence[str]]]:
    """Return the title and the members of each list of states, by its table in the file of rows."""
    from fedpriv import process
    from fedpriv.report.rundir import Run, SiteState
    from fedpriv_client import jobs
    from fedpriv_server import job_queue

    runs = ("preparing", *get_args(Run.model_fields["status"].annotation))
    return {
        "connection": ("A site's connection", get_args(process.Connection)),
        "activity": ("What a site does", get_args(process.Activity)),
        "job": ("A job at a site", get_args(jobs.State)),
        "site": ("A site, as the coordinator knows it", [state.value for state in SiteState]),
        "server": ("A coordinator", get_args(process.ServerState)),
        "queue": ("A job in a coordinator's queue", get_args(job_queue.State)),
        "run": ("A run directory", runs),
        "ledger": ("A slot, and its ledger: the newest row", ["terms", *row_kinds()]),
    }


def row_kinds() -> list[str]:
    """Return the kinds of rows that a ledger's history reads after the first row."""
    path = ROOT / "fedpriv" / "privacy" / "ledger" / "history.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "readers":
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    sys.exit(f"{path}: has no table of readers any more.")


def check_words(known: dict[str, tuple[str, Sequence[str]]]) -> None:
    """Check that each word that a process says about itself is a state.

    Raises:
        SystemExit: a word is no state.
    """
    words = {"connection": "connection", "activity": "activity", "state": "server"}
    allowed = {key: set(known[name][1]) for key, name in words.items()}
    folders = (ROOT / "client" / "fedpriv_client", ROOT / "server" / "fedpriv_server")
    for path in sorted(file for folder in folders for file in folder.glob("*.py")):
        for key, word in _said(ast.parse(path.read_text(encoding="utf-8"))):
            if word not in allowed.get(key, {word}):
                sys.exit(f"{path}: {key}={word!r} is in no enumeration of states.")


def _said(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the keywords and texts that are given to a `Status`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and "status" in ast.unparse(node.func).lower():
            for item in node.keywords:
                for part in ast.walk(item.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield str(item.arg), part.value


def _items(rows: dict[str, Sequence[str]], members: Sequence[str]) -> Iterator[str]:
    for state in members:
        meaning, shown = rows[state]
        yield f"- `{state}`: {meaning}{f' ({shown})' if shown else ''}"


def _together(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield neighbouring rows that differ only in their state as one row."""
    for rest, same in groupby(rows, key=lambda row: row[1:]):
        yield (", ".join(row[0] for row in same), *rest)


def refusals() -> Iterator[str]:
    """Yield a list of errors for each exit code of a command: each error, and when it occurs."""
    from fedpriv import errors

    found: dict[int, list[str]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.FedprivError):
            about = (kind.__doc__ or "").split("\n")[0]
            codes = sorted(errors.LIMITS) if kind is errors.LimitError else [kind.code]
            shown = ", ".join(f"`{code}`" for code in codes)
            found.setdefault(kind.exit_code, []).append(f"- {shown}: {about}")
    for code, rows in sorted(found.items()):
        yield "\n".join([f"**Exit code {code}**\n", *rows, ""])


def page() -> str:
    """Return the whole page.

    Raises:
        SystemExit: a state has no row, or a row has no state.
    """
    file: dict[str, dict[str, Any]] = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    known, parts = states(), [HEAD]
    check_words(known)
    for name, (title, members) in known.items():
        rows = file.pop(name, {})
        if set(rows) != set(members):
            differ = sorted(set(rows) ^ set(members))
            sys.exit(f"{ROWS.name}: [{name}] and the code differ about {differ}.")
        text = [f"{TEXTS[name]}\n"] if name in TEXTS else []
        parts += [f"## {title}\n", *text]
        if name in ("run", "ledger"):
            parts += ["\n".join([*_items(rows, members), ""])]
        else:
            told = ((f"`{one}`", *(cell or "–" for cell in rows[one])) for one in members)
            parts.append(table(TOLD, _together(told)))
    if file:
        sys.exit(f"{ROWS.name}: has tables of what is gone: {sorted(file)}.")
    parts.append(
        "## Errors, and why a site refuses\n\n"
        "A site's log says `Refused (CODE): …` and why. The coordinator hears only code and"
        " [class](api.md); `status` of both shows these. Each list is of one exit code.\n"
    )
    parts += refusals()
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), Path(__file__).name, __doc__))
