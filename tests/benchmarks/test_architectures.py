"""Whatever transformers has is computed as it computes it, or refused in words of ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from architectures import PAGE, kinds, table, tried

TASKS = ("causal-lm", "classification")


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("task", TASKS)
def test_every_architecture_is_exact_or_refused_in_words(task: Any) -> None:
    rows = [tried(kind, task) for kind in kinds(task)]
    assert not [row for row in rows if row.said.startswith("FAULT")]
    text = PAGE.read_text(encoding="utf-8")
    if re.findall(r"with transformers (\d+\.\d+)", text) == [transformers.__version__[:4]]:
        assert "\n".join(table(rows)) in text


@pytest.mark.parametrize("task", TASKS)
def test_the_page_has_a_row_of_each(task: Any) -> None:
    rows = PAGE.read_text(encoding="utf-8").split(f"<!-- {task} -->")[1].splitlines()
    named = [
        kind for row in rows if row.startswith("| ") for kind in row.split(" | ")[0][2:].split(", ")
    ]
    assert len(named) == len(set(named)) > 100
    assert "FAULT" not in "".join(rows)
    assert {"llama", "bloom"} <= set(named)


def test_a_row_says_what_a_run_would_do(tmp_path: Path) -> None:
    assert tried("mpt", "causal-lm").said == "exact: eager"
    assert tried("xlnet", "causal-lm").said == "refused: sees the tokens that it is to predict"
