#!/usr/bin/env python
"""Check that the documentation and the messages read easily.

    python scripts/prose.py            # the longest pages and sentences
    python scripts/prose.py --check    # fail where a limit is exceeded

Limits are on words of all pages, words of a sentence, and the mean of a page. Phrases that are hard
to read are listed here. `proselint` knows the usual ones.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from proselint.checks import __register__
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).parents[1]
USUAL = dict.fromkeys(
    ("cliches", "malapropisms", "mixed_metaphors", "needless_variants", "nonwords",
     "oxymorons", "redundancy", "spelling"), True
)  # fmt: skip
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PACKAGES = ("fedpriv", "client", "server", "strategies", "lab", "verify")
ALL_WORDS = 44_500  # of docs, without code
LONGEST = 45  # words of a sentence
MEAN = 18.0  # words of a page's sentences
HARD = re.compile(
    r"\b(whoever|such as it is|what there is|that at an? |as it were|thereof|whereof|hereby|"
    r"in order to|due to the fact|is able to|the latter|the former|respectively|"
    r"and/or|e\.g\.|i\.e\.|etc\.)",
    re.IGNORECASE,
)


def sentences(markdown: str) -> Iterator[str]:
    """Give the sentences of a page, without code, tables, headings and targets of links."""
    text = re.sub(r"^(#|\||!\[|\s*<).*$", "\n", without_code(markdown), flags=re.M)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^ *([-*>]|\d+\.) +", "\n\n", text, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", text):
        joined = re.sub(r"`[^`]*`", "code", " ".join(paragraph.split()))
        yield from filter(None, re.split(r"(?<=[.!?:;])[)*_\"”]* +(?=[\W_]*[A-Z0-9])", joined))


def without_code(markdown: str) -> str:
    """Return a page without blocks of code, and without comments."""
    return re.sub(r"^```.*?^```$|<!--.*?-->", "", markdown, flags=re.M | re.S)


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Give line and text of every message: of errors, and of help on the command line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            said = [*node.exc.args, *(word.value for word in node.exc.keywords)]
        elif isinstance(node, ast.Call):
            said = [word.value for word in node.keywords if word.arg in ("help", "description")]
        else:
            continue
        for part in said:
            if text := _text(part):
                yield part.lineno, text


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _text(part) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    return ""


def words(text: str) -> int:
    """Count words, which have a letter. Figures and the lines of tables don't count."""
    return sum(any(map(str.isalpha, word)) for word in text.split())


def complaints() -> Iterator[str]:
    """Say what is too long or hard to read, and where."""
    total = sum(words(without_code(page.read_text(encoding="utf-8"))) for page in PAGES[1:])
    if total > ALL_WORDS:
        yield f"docs: {total:,} words; at most {ALL_WORDS:,}"
    for page in PAGES:
        name, found = page.relative_to(ROOT), [*sentences(page.read_text(encoding="utf-8"))]
        lengths = [words(sentence) for sentence in found]
        mean = sum(lengths) / max(1, len(lengths))
        if mean > MEAN:
            yield f"{name}: sentences of {mean:.1f} words on average; at most {MEAN:g}"
        for sentence, length in zip(found, lengths, strict=True):
            yield from (f"{name}: {why}" for why in _of_sentence(sentence, length))
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, text in messages(path):
                for sentence in sentences(text):
                    for why in _of_sentence(sentence, words(sentence)):
                        yield f"{path.relative_to(ROOT)}:{line}: {why}"


def _of_sentence(sentence: str, length: int) -> Iterator[str]:
    if length > LONGEST:
        yield f"{length} words in a sentence; at most {LONGEST}: {sentence[:70]}…"
    if hard := HARD.search(sentence):
        around = sentence[max(0, hard.start() - 30) : hard.end() + 30]
        yield f"{hard[0]!r} is hard to read: …{around}…"


def usual(page: Path) -> Iterator[str]:
    """Give proselint's findings in the sentences of a page."""
    text = "\n\n".join(sentences(page.read_text(encoding="utf-8")))
    for found in LintFile(str(page), text).lint({"max_errors": 1000, "checks": USUAL}):
        result = found.check_result
        yield f"{page.relative_to(ROOT)}: {result.check_path}: {result.message}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    check = parser.parse_args().check
    CheckRegistry().register_many(__register__)
    found = [*complaints(), *(said for page in PAGES for said in usual(page))]
    print(*found, sep="\n")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
