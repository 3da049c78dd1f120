"""The documentation site, as `scripts/docs` builds it: nothing broken, nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import fedpriv

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# What a browser fetches by itself, as opposed to where a reader may go.
FETCHED = {("script", "src"), ("img", "src"), ("source", "src"), ("link", "href")}


class Page(HTMLParser):
    """The ids of a page, where its links lead, and what it fetches."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.ids.add(value)
            elif (tag, name) in FETCHED and value:
                self.fetched.append(value)
            elif name == "href" and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without the notebooks' results, which tests/docs/test_notebooks.py makes."""
    folder = tmp_path_factory.mktemp("build")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["scripts/docs", "-D", "nb_execution_mode=off"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"BUILD": str(folder), "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def leads(page: Page) -> Iterator[tuple[Path, str]]:
    """Where links within the site lead: a file, and a place in it."""
    for link in [*page.links, *page.fetched]:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            path = page.path.parent / unquote(parts.path) if parts.path else page.path
            yield path.resolve(), unquote(parts.fragment)


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 30
    for page in pages.values():
        for target, place in leads(page):
            assert target.is_file(), f"{page.path.name}: {target}"
            if place and target in pages:
                assert place in pages[target].ids, f"{page.path.name}: {target.name}#{place}"


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for page in pages.values():
        for link in page.fetched:
            assert not urlsplit(link).netloc, f"{page.path.name}: {link}"
    for style in site.rglob("*.css"):
        for found in re.findall(r"url\(([^)]*)\)|@import ([^;]*)", style.read_text()):
            assert "//" not in "".join(found).replace("http://www.w3.org", ""), style.name


def test_the_site_holds_every_page_and_name(site: Path, pages: dict[Path, Page]) -> None:
    for path in ROOT.glob("docs/**/*.md"):
        assert (site / path.relative_to(ROOT).with_suffix(".html")).is_file()
    names = pages[site / "docs/reference/api.html"].ids
    assert {f"fedpriv.{name}" for name in fedpriv.__all__} - names == {"fedpriv.FedprivError"}
    assert {"fedpriv.errors.FedprivError", "fedpriv.errors.BudgetError"} <= names
    text = (site / "docs/reference/api.html").read_text()
    assert text.count(">Privacy<") >= 4 and "```" not in text
    assert "url=docs/index.html" in (site / "index.html").read_text()
