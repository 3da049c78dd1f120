"""What the default suite keeps, and what the slow runs add to it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import hypothesis
import pytest

from tests.example_counts import examples

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_broken_law_turns_the_default_suite_red() -> None:
    """Of the tests that catch a sabotage of a law, one at least is not slow."""
    table = (ROOT / "tests" / "mutations" / "sabotages.toml").read_text(encoding="utf-8")
    caught: dict[str, set[str]] = defaultdict(set)
    for row in tomllib.loads(table)["sabotage"]:
        caught[row["law"]].add(row["caught_by"])
    files = sorted({test.partition("::")[0] for tests in caught.values() for test in tests})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    quick = {line for line in done.stdout.splitlines() if "::" in line}
    quick |= {line.partition("[")[0] for line in quick}
    assert len(caught) == 19
    for law, tests in caught.items():
        assert tests & quick, law


def test_a_property_gets_all_its_examples_at_night_and_where_it_is_named(
    pytestconfig: pytest.Config,
) -> None:
    full = "not nightly" not in pytestconfig.option.markexpr
    assert hypothesis.settings.default.max_examples == (100 if full else 20)
    assert [examples(n) for n in (60, 10, 3)] == ([60, 10, 3] if full else [12, 3, 3])
