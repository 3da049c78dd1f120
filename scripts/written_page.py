"""Tables and the command line, for scripts that write one page of the documentation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

Row = tuple[str, ...]


def table(head: Row, rows: Iterable[Row]) -> str:
    """Return a table in Markdown. A test that repeats the row before is written as "same"."""
    lines, test = [head], ""
    for row in rows:
        lines.append((*row[:-1], "same") if row[-1] == test and head[-1] == "test" else row)
        test = row[-1]
    first, *others = (f"| {' | '.join(map(_plain, line))} |" for line in lines)
    return "\n".join([first, f"|{'---|' * len(head)}", *others]) + "\n"


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def write_or_check(page: Path, text: str, script: str, about: str | None) -> int:
    """Write the page, or with `--check` compare it, and return the code to exit with.

    Args:
        page: path of the page.
        text: text that the page has to hold.
        script: name of the script's file, for the person who has to run it.
        about: docstring of the script.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it would differ")
    if not parser.parse_args().check:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    print(f"{page} is not up to date. Run: python scripts/{script}", file=sys.stderr)
    return 1
