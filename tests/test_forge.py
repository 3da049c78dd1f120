"""What a forge runs, pinned and with no more rights than to read; and versions that agree."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedpriv import __version__

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        yield from job["steps"]


def faults(path: Path) -> Iterator[str]:
    """What would fail on a forge, or trust more than it has to."""
    if yaml.safe_load(path.read_text())["permissions"] != {"contents": "read"}:
        yield "may do more than read"
    for step in steps(path):
        if "uses" in step and not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]):
            yield f"{step['uses']} is not pinned"
        for script in re.findall(r"\bscripts/\S+", step.get("run", "")):
            if not (ROOT / script).exists():
                yield f"there is no {script}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_pinned_and_only_reads(path: Path) -> None:
    assert list(faults(path)) == []


def test_a_faulty_workflow_would_be_found(tmp_path: Path) -> None:
    text = """
    permissions: {contents: write}
    jobs:
      one: {steps: [{uses: actions/checkout@v5}, {run: scripts/no-such --flag}]}
    """
    (tmp_path / "faulty.yml").write_text(text)
    assert list(faults(tmp_path / "faulty.yml")) == [
        "may do more than read",
        "actions/checkout@v5 is not pinned",
        "there is no scripts/no-such",
    ]


def test_the_oldest_versions_are_those_that_are_allowed() -> None:
    """Who raises a lower bound writes `tests/oldest.txt` anew."""
    lines = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    for requirement in map(Requirement, wanted):
        if (name := canonicalize_name(requirement.name)) != "fedpriv":
            assert requirement.specifier.contains(pinned[name]), requirement


def test_it_is_cited_in_its_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
