"""Whatever transformers has is computed as it computes it, or refused in words of ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from architectures import MARK, NOT_TRIED, PAGE, kinds, listed, table, tried, verdict

TASKS = ("causal-lm", "classification")


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("task", TASKS)
def test_every_architecture_is_exact_or_refused_in_words(task: Any) -> None:
    rows = [tried(kind, task) for kind in kinds(task)]
    assert not [row for row in rows if row.said.startswith("FAULT")]
    text = PAGE.read_text(encoding="utf-8")
    if re.findall(r"with transformers (\d+\.\d+)", text) == [transformers.__version__[:4]]:
        said = {row.kind: verdict(row) for row in rows if verdict(row) != NOT_TRIED}
        assert listed(text)[task] == said


def test_the_page_has_its_table_as_it_would_be_written() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = listed(text)
    assert text.split(MARK)[1].strip().splitlines() == [*table(found)]
    for task in TASKS:
        assert len(found[task]) > 100
        assert {"llama", "bloom"} <= set(found[task])
        assert not [said for said in found[task].values() if "FAULT" in said]


def test_a_row_says_what_a_run_would_do(tmp_path: Path) -> None:
    assert tried("mpt", "causal-lm").said == "exact: eager"
    assert tried("xlnet", "causal-lm").said == "refused: sees the tokens that it is to predict"
