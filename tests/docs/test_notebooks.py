"""The notebooks, each by a kernel of its own as a reader has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def executed(name: str) -> list[str]:
    """What a notebook shows, cell by cell.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(FOLDER / name, as_version=4)
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(FOLDER)}}).execute()
    return [
        "".join(map(_shown, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"
    ]


def _shown(output: Any) -> str:
    return str(output.get("text") or output.get("data", {}).get("text/plain", ""))


def test_they_are_kept_without_results() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        for cell in notebook.cells:
            assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None)


@pytest.mark.nightly
def test_ten_lines_make_an_adapter_that_answers() -> None:
    shown = "\n".join(executed("ten-lines.ipynb"))
    scores = re.search(r"before: ([\d.]+), after: ([\d.]+)", shown)
    assert scores and float(scores[2]) < float(scores[1])
    assert "Patient: Take" in shown
    assert "'north': 7.9" in shown and "privacy.epsilon: input should be greater than 0" in shown


@pytest.mark.nightly
def test_what_it_costs_is_paid_from_a_ledger() -> None:
    shown = executed("what-it-costs.ipynb")
    assert "'expected_batch': 50.0" in shown[1]
    assert "secure-sum" in "".join(shown) and "gain trained further" in "".join(shown)
    assert any("of 4.0" in cell and cell.count("reserve") == 3 for cell in shown)
