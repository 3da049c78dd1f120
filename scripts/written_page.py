"""The command line of a script that writes one page of the documentation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def write_or_check(page: Path, text: str, script: str, about: str | None) -> int:
    """Write the page, or with `--check` compare it; the code to exit with.

    Args:
        page: the file.
        text: what it has to hold.
        script: name of the script's file, for whoever has to run it.
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
