"""The pages that belong to the site alone are done as they are written; of all pages, the commands
are ones that the programs know."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from click import Command, Context, Group
from typer.testing import CliRunner

from fedpriv.cli import app as fedpriv
from fedpriv.report.budget import BudgetReport
from fedpriv_client.cli import app as client
from fedpriv_server.cli import app as server
from tests.followed_pages import Reader

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in (
        *("*.md", "docs/**/*.md", "deploy/*.md", "examples/*.md"),
        "fedpriv/recipes/*/*.md",
    )
    for path in ROOT.glob(pattern)
)
PROGRAMS = {"fedpriv": fedpriv, "fedpriv-client": client, "fedpriv-server": server}
# Programs of others, on machines or of projects that no test has.
OTHERS = {
    *(
        "cp",
        "docker",
        "install",
        "kubectl",
        "llama-cli",
        "lm_eval",
        "mkdir",
        "mv",
        "pip",
        "pre-commit",
    ),
    *("pytest", "python3.11", "rm", "ssh", "systemctl", "systemd-sysusers", "tar", "umask", "vllm"),
    *("/opt/fedpriv/bin/pip", "convert_hf_to_gguf.py", "convert_lora_to_gguf.py"),
}
_SETTINGS = ("job.rounds=1", "evaluation.limit=8", "model.max_length=32")
LITTLE = {r"^(fedpriv simulate .*)$": " --set ".join([r"\1", *_SETTINGS]), "steps=20": "steps=2"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["explanation/concepts", "for-engineers", "how-to/recipes", "explanation/sharp-edges"]
)
def test_a_page_is_done_as_it_is_written(page: str, tmp_path: Path) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    blocks = re.findall(r"^```(console|python)\n(.*?)^```$", text, re.M | re.S)
    there = sum(block.count("\n") if kind == "console" else 1 for kind, block in blocks)
    assert Reader(tmp_path, LITTLE).follow(text) == there > 0


def test_the_figure_of_a_secure_sum_is_the_one_of_a_file_of_fifty_sites(tmp_path: Path) -> None:
    page = (ROOT / "docs/explanation/sharp-edges.md").read_text()
    said = re.search(r"may be ε = (\d+) \*alone\*", page)
    assert said
    file = tmp_path / "federation.toml"
    text = (
        "[job]\nrounds = 30\n[privacy]\nepsilon = 4\nsample_rate = 0.2\n"
        'trust = "secure-sum"\n[evaluation]\ndata = "e.jsonl"\n'
    )
    site = '[[sites]]\nname = "s{}"\ndata = "a.jsonl"\nsize = 250\n'
    file.write_text(text + "".join(map(site.format, range(50))))
    shown = CliRunner().invoke(fedpriv, ["plan", str(file), "--json"])
    assert round(json.loads(shown.stdout)["alone"]["epsilon"]) == int(said[1])


@pytest.mark.slow
def test_what_the_privacy_officer_is_shown_is_what_there_is(tmp_path: Path) -> None:
    """The commands of the page, and then its two examples: every key, every line."""
    text = (ROOT / "docs/for-privacy-officers.md").read_text()
    reader = Reader(tmp_path, LITTLE)
    assert reader.follow(text) == 4
    budget = json.loads((tmp_path / "run/sites/north/budget.json").read_text())
    assert example()[0] == list(budget)
    verified = [line.strip() for line in reader.shown[-1].splitlines()]
    lines = text.partition("```text\n")[2].partition("```")[0].splitlines()
    assert {line[0] for line in lines} == {"3", "✓", "?", "K"}
    for line in lines:
        pattern = re.sub(r"\d+", r"\\d+", re.escape(line).replace("6b3f…", r"[\w ]+"))
        assert any(re.fullmatch(pattern.replace("…", ".*"), said) for said in verified), line


def example() -> tuple[list[str], dict[str, object]]:
    """The keys of the annotated report, and what it says."""
    text = (ROOT / "docs/for-privacy-officers.md").read_text()
    block = text.partition("```json\n")[2].partition("```")[0]
    read = json.loads(re.sub(r"\s+//.*$", "", block, flags=re.M))
    return list(read), read


def test_the_annotated_report_has_every_key_of_one() -> None:
    keys, read = example()
    needed = {
        name for name, field in BudgetReport.model_fields.items() if field.default is not None
    }
    assert needed <= set(keys) <= set(BudgetReport.model_fields)
    assert read["epsilon_committed"] <= read["budget"]  # type: ignore[operator]


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command of a page, without comments and what is before the program."""
    text = (ROOT / page).read_text()
    for block in re.findall(r"^```(?:console|sh)\b[^\n]*\n(.*?)^```$", text, re.M | re.S):
        for line in re.split(r"\n|&&", block):
            words = shlex.split(line.strip(" ()"), comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                del words[0]
            if words[:2] == ["runuser", "-u"]:
                del words[: words.index("--") + 1]
            if words:
                yield words


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_are_ones_that_there_are(page: Path) -> None:
    for program, *words in commands(page):
        said = shlex.join([program, *words])
        if Path(program).name in PROGRAMS:
            options = options_of(Path(program).name, tuple(words))
            used = {
                word.partition("=")[0] for word in words if word.startswith("-") and word != "-"
            }
            assert used <= options, f"{page}: {said}"
        elif program == "python" and words[0] not in OTHERS:
            assert (ROOT / words[0]).is_file(), f"{page}: {said}"
            known = texts((ROOT / words[0]).parent)
            for option in (word for word in words if word.startswith("--")):
                assert f'"{option}"' in known, f"{page}: {said}"
        elif program not in {*OTHERS, "python"}:
            assert (ROOT / program).is_file(), f"{page}: {said}"


def options_of(program: str, words: tuple[str, ...]) -> set[str]:
    """What the command that the words name may be told."""
    command: Command = typer.main.get_command(PROGRAMS[program])
    context, options = Context(command, info_name=program), {"--help"}
    for word in words:
        options |= {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        found = command.get_command(context, word) if isinstance(command, Group) else None
        if found is not None:
            command, context = found, Context(found, parent=context, info_name=word)
    return options | {option for p in command.params for option in (*p.opts, *p.secondary_opts)}


@cache
def texts(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.py")))
