"""What the documents name exists."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "deploy/README.md",
    "docs/deploy.md",
    "docs/network.md",
    "docs/methods.md",
    "docs/models.md",
    "docs/privacy.md",
    "docs/roadmap.md",
    "docs/results.md",
    "README.md",
]
_PATH = re.compile(
    r"`((?:fedpriv|client|server|strategies|tests|benchmarks|scripts|docs)/[\w./-]+)(?:::(\w+))?`"
)


def named(document: str) -> list[tuple[str, str]]:
    return _PATH.findall((ROOT / document).read_text())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_tests_that_are_named_exist(document: str) -> None:
    for path, test in named(document):
        assert (ROOT / path).exists(), f"{document} names {path}"
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(), f"{document} names {path}::{test}"


def test_every_law_names_a_test_that_goes_red() -> None:
    text = (ROOT / "docs/privacy.md").read_text().partition("## Law by law")[2]
    laws = [line for line in text.splitlines() if re.match(r"\| \d+ ", line)]
    assert [int(line.split()[1]) for line in laws] == list(range(1, 17))
    for line in laws:
        kept, red = line.split("|")[2:4]
        assert "::test_" in red or "mypy" in red
        assert _PATH.search(kept) or "ClippedSum" in kept


def test_links_inside_the_repository_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document}: {target}"


def said(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, with … for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_errors_that_are_quoted_are_those_that_are_raised() -> None:
    table = (ROOT / "docs/deploy.md").read_text().partition("| what you see |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    quoted = [row.split("`")[1] for row in rows if row.startswith("| `")]
    assert len(quoted) >= 5
    files = (
        path for root in ("fedpriv", "client", "server") for path in (ROOT / root).rglob("*.py")
    )
    texts = [text for path in files for text in said(ast.parse(path.read_text()))]
    for message in quoted:
        parts = [part.partition(": ")[2] or part for part in message.split("…")]
        for part in (part.strip() for part in parts if len(part.strip()) > 8):
            assert any(part in text for text in texts), message


@pytest.mark.slow
def test_the_commands_of_the_privacy_document_are_taken(tmp_path: Path) -> None:
    """Those of `fedpriv plan` and `fedpriv ledger`, as they are written there."""
    text = (ROOT / "docs/privacy.md").read_text()
    commands = re.findall(r"^(fedpriv (?:plan|ledger) .*?)(?: +#.*)?$", text, re.M)
    assert len(commands) >= 6
    program = Path(sys.executable).parent / "fedpriv"
    for command in commands:
        if re.search("JOB|--report|DATA_SET", command):  # need a job that has run, or a refusal
            continue
        words = [str(program), *command.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.mark.slow
def test_the_readmes_ledger_pays_for_a_run(tmp_path: Path) -> None:
    """The commands of "A budget for life", one after the other, with one round for all."""
    block = (ROOT / "README.md").read_text().partition("## A budget for life")[2]
    commands = re.findall(r"^fedpriv (.*?)(?: +#.*)?$", block.partition("\n## ")[0], re.M)
    assert [command.split()[0] for command in commands] == ["ledger", "simulate", *3 * ["ledger"]]
    program = str(Path(sys.executable).parent / "fedpriv")
    for command in ("init mine", *commands):
        words = [program, *shlex.split(command)]
        if words[1] == "simulate":
            words += ["--set", "job.rounds=1", "--set", "evaluation.limit=8"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
