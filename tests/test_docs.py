"""What the documents name exists."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedpriv.config.job import JobConfig
from fedpriv.config.personal import OwnSiteData, OwnSiteFile
from fedpriv.config.sites import SiteSection
from fedpriv.defaults import TABLE
from tests.forked_commands import command

ROOT = Path(__file__).parents[1]
STUDIES = sorted((ROOT / "docs/results").glob("*.md"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [
    *("CONTRIBUTING.md", "README.md", "SECURITY.md", "deploy/README.md", "examples/README.md"),
    *(str(page.relative_to(ROOT)) for page in PAGES),
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
    text = (ROOT / "docs/explanation/privacy.md").read_text().partition("## Law by law")[2]
    laws = [line for line in text.splitlines() if re.match(r"\| \d+ ", line)]
    assert [int(line.split()[1]) for line in laws] == [*range(1, 20)]
    for line in laws:
        kept, red = line.split("|")[2:4]
        assert "::test_" in red or "mypy" in red
        assert _PATH.search(kept) or "ClippedSum" in kept


def test_links_inside_the_repository_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document}: {target}"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["make_config_reference.py", "make_trl_table.py"])
def test_the_references_of_settings_are_up_to_date(script: str) -> None:
    command = [sys.executable, f"scripts/{script}", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def tables_of(section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a file, in whatever table."""
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not tables:
            yield f"{section.__name__}.{name}", field
        for table in tables:
            assert table.__doc__, table
            yield from tables_of(table)


def test_every_setting_says_in_a_sentence_what_it_means() -> None:
    """And the reference, which is made of them, has each of them."""
    page = (ROOT / "docs/reference/configuration.md").read_text()
    settings = [*tables_of(JobConfig), *tables_of(OwnSiteFile)]
    assert len(settings) > 100
    for name, field in settings:
        assert field.description and field.description.endswith("."), name
        assert field.description.replace("|", r"\|") in page, name
        assert f"| `{name.rpartition('.')[2]}` |" in page, name


@pytest.mark.parametrize("page", ["docs/how-to/data.md", "fedpriv/recipes/omop/README.md"])
def test_what_a_page_says_of_records_is_taken(page: str) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    tables = [tomllib.loads(block) for block in blocks]
    assert any("omop" in table.get("data", {}) for table in tables)
    for table in tables:
        if "data" in table:
            data = OwnSiteData.model_validate({"size": 9, **table["data"]})
            data.check_one(data.path, "data", "path")
        for site in table.get("sites", ()):
            SiteSection.model_validate(site).check_one(None, "sites.0", "data")


def said(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, with … for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_links_to_a_heading_name_one_that_is_there() -> None:
    for document in DOCUMENTS:
        path = ROOT / document
        for target, heading in re.findall(r"\]\(([^)#:\s]*\.md)?#([^)]+)\)", path.read_text()):
            there = headings_of(path.parent / target if target else path)
            assert heading in there, f"{document}: {target}#{heading}"


def headings_of(page: Path) -> set[str]:
    """The anchors of a page: its headings in small letters, without punctuation."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_readme_is_short_and_begins_with_two_commands() -> None:
    """As `.ci/run` reads them; what else there is to say has pages of its own."""
    text = (ROOT / "README.md").read_text()
    first = re.search(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    assert first and len(first[1].splitlines()) == 2
    assert len(text.splitlines()) <= 90
    index = (ROOT / "docs/index.md").read_text()
    for page in (path for path in PAGES if path not in STUDIES):
        name = page.relative_to(ROOT / "docs")
        assert f"(docs/{name})" in text or f"({name})" in index, name


def test_the_glossary_is_in_order_and_holds_what_a_reader_asks_for() -> None:
    rows = re.findall(
        r"^\| \*\*(.+?)\*\*.* \| (.+) \|$", (ROOT / "docs/reference/glossary.md").read_text(), re.M
    )
    words = [word for word, _ in rows]
    assert words == sorted(words, key=str.casefold)
    assert all(meaning.endswith((".", "*.", ").")) for _, meaning in rows)
    asked = "slot reservation plan rule ledger witness unit outbox privatised release round"
    assert {*asked.split(), "declared size", "synthetic set", "simulated ledger"} <= {*words}


def test_errors_that_are_quoted_are_those_that_are_raised() -> None:
    table = (ROOT / "docs/tutorials/consortium.md").read_text().partition("| what you see |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    quoted = [row.split("`")[1] for row in rows if row.startswith("| `")]
    assert len(quoted) >= 5
    files = (
        path
        for root in ("fedpriv", "client", "server", "lab")
        for path in (ROOT / root).rglob("*.py")
    )
    texts = [text for path in files for text in said(ast.parse(path.read_text()))]
    for message in quoted:
        parts = [part.partition(": ")[2] or part for part in message.split("…")]
        for part in (part.strip() for part in parts if len(part.strip()) > 8):
            assert any(part in text for text in texts), message


@pytest.mark.slow
def test_the_commands_of_the_privacy_document_are_taken(tmp_path: Path) -> None:
    """Those of `fedpriv plan` and `fedpriv ledger`, as they are written there."""
    text = (ROOT / "docs/explanation/privacy.md").read_text()
    commands = re.findall(r"^(fedpriv (?:plan|ledger) .*?)(?: +#.*)?$", text, re.M)
    assert len(commands) >= 6
    for line in commands:
        if re.search("JOB|--report|DATA_SET", line):  # need a job that has run, or a refusal
            continue
        done = command(*line.split(), folder=tmp_path)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.slow
def test_the_ledger_of_the_first_steps_pays_for_a_run(tmp_path: Path) -> None:
    """The commands of "A budget for life", one after the other, with one round for all."""
    block = (
        (ROOT / "docs/tutorials/first-steps.md").read_text().partition("\n## A budget for life")[2]
    )
    commands = re.findall(r"^fedpriv (.*?)(?: +#.*)?$", block.partition("\n## ")[0], re.M)
    assert [line.split()[0] for line in commands] == ["ledger", "simulate", *3 * ["ledger"]]
    for line in ("init hospitals --recipe hospitals", *commands):
        words = ["fedpriv", *shlex.split(line)]
        if words[1] == "simulate":
            words += ["--set", "job.rounds=1", "--set", "evaluation.limit=8"]
        done = command(*words, folder=tmp_path)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.slow
def test_the_python_of_the_documents_runs(tmp_path: Path) -> None:
    """Of the tutorial and then the README, with a step or two and few held-out records."""
    script = ""
    for document in ("docs/tutorials/python.md", "README.md"):
        text = (ROOT / document).read_text()
        for line in re.findall(r"^```console\n(fedpriv .*?)$", text, re.M):
            done = command(*shlex.split(line), folder=tmp_path)
            assert done.returncode == 0, f"{line}: {done.stderr}"
        if document == "README.md":  # whose data sets have the column that is usual
            script += "notes = notes.rename_column('transcription', 'text')\n"
            script += "public = public.rename_column('transcription', 'text')\n"
        script += "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))
    for much, little in (
        (r'"rounds": \d+', '"rounds": 1'),
        (r"\bsteps=30\b", "steps=2"),
        (r"num_train_epochs=6", "num_train_epochs=0.4"),
        (r'(from_json\("notes/held-out.jsonl.gz"\))', r"\1.select(range(8))"),
    ):
        script, count = re.subn(much, little, script)
        assert count, much
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "federation.toml: privacy.epsilon: input should be greater than 0" in done.stdout
    for made in ("adapter", "out/adapter"):
        assert (tmp_path / made / "adapter_model.safetensors").is_file()


def test_every_figure_of_the_summary_is_on_the_page_that_is_named() -> None:
    """A row of a table names its page itself; what is said outside of tables is on any of them."""
    summary = (ROOT / "docs/results.md").read_text().partition("\n## How to read the tables\n")[0]
    rows = 0
    for line in summary.splitlines():
        named = re.findall(r"\((results/[\w-]+\.md)", line) if line.startswith("|") else []
        pages = [ROOT / "docs" / name for name in named] or STUDIES
        below = "\n".join(page.read_text() for page in pages)
        figures = re.findall(r"\d+\.\d+", line)
        rows += bool(named and figures)
        for figure in figures:
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", below), line
    assert rows > 15


def test_every_study_has_its_command_and_every_file_of_figures_a_reader() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for study in STUDIES:
        assert "```console\n" in study.read_text(), study.name
    for kind in ("json", "svg"):
        for path in (ROOT / "docs/results").glob(f"*.{kind}"):
            assert f"({path.name})" in text or f"results/{path.name})" in text, path.name


def test_the_table_of_defaults_is_the_one_that_is_filled_in() -> None:
    section = (ROOT / "docs/results/defaults.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:3] != "|--"]
    told = [row for row in rows if row[0].startswith(("language model, ", "classifier, "))]
    for (size, clip, rate, rank, lr, _), row in zip(told, TABLE, strict=True):
        words = "larger" if row.parameters is None else f"up to {row.parameters / 1e6:g} M"
        r, alpha = map(float, rank.split(", "))
        assert size == f"{'classifier' if row.labels else 'language model'}, {words}"
        found = (row.clip_norm, row.sample_rate, row.r, row.alpha, row.lr)
        assert found == (float(clip), float(rate), r, alpha, float(lr))
