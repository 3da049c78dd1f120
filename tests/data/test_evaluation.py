"""Public records that a run is scored on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError
from fedpriv_server.evaluation import load_examples

Make = Callable[..., Any]
BY_PATIENT = DataSpec({"text": "note"}, "causal-lm", (), 8, "patient", 2)


def test_evaluation_records(tmp_path: Path, make_tokenizer: Make) -> None:
    path = tmp_path / "public.jsonl"
    notes = ["", "a" * 30, "bb", "cc"]
    path.write_text("".join(json.dumps({"note": note}) + "\n" for note in notes))

    def load_notes(limit: int | None, share: float = 0.0) -> tuple[list[int], list[int]]:
        spec = BY_PATIENT  # its id column is not needed
        key, folder, tokenizer = "evaluation.data", tmp_path, make_tokenizer()
        reported, tuning = load_examples(path, spec, tokenizer, key, limit, folder, share)
        return [len(one.input_ids) for one in reported], [len(one.input_ids) for one in tuning]

    assert load_notes(None) == ([8, 8, 3, 3], [])
    assert load_notes(3) == ([8, 8, 3], [])
    assert load_notes(99) == load_notes(None)
    reported, tuning = load_notes(None, 0.5)
    assert sorted(reported + tuning) == [3, 3, 8, 8]  # and windows of one text stay together
    assert (reported.count(8), tuning.count(8)) in {(2, 0), (0, 2)}
    assert load_notes(None, 0.5) == (reported, tuning)
    for limit, share in ((1, 0.0), (2, 0.5)):
        with pytest.raises(DataError, match="nothing to evaluate") as caught:
            load_notes(limit, share)
        assert caught.value.key == "evaluation.data"


@pytest.mark.parametrize("labels", [("no", "yes"), ("no", "yes", "may be")])
def test_records_of_one_label_alone_are_named(
    labels: tuple[str, ...],
    tmp_path: Path,
    make_tokenizer: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A limit takes the first rows, which a file sorted by label has of one class alone."""
    path = tmp_path / "public.jsonl"
    rows = [{"note": f"a {i}", "kind": "yes" if i < 4 else "no"} for i in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"text": "note", "label": "kind"}
    spec = DataSpec(columns, "classification", labels, 8, "record", 1)
    for limit in (None, 5):
        load_examples(path, spec, make_tokenizer(), "evaluation.data", limit, tmp_path)
    assert not caplog.messages
    load_examples(path, spec, make_tokenizer(), "synthetic.data", 4, tmp_path)
    [said] = caplog.messages
    assert f"synthetic.data, the first 4 records of {path}: All" in said
    assert "have the label 'yes': there is no AUC, and accuracy says little" in said
