"""The files of benchmarks/levers.py: a record's views are one unit of its own."""

from __future__ import annotations

import json
from pathlib import Path

import levers
from joining_data import KINDS
from joining_runs import Point


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_unit_is_a_record_and_its_views(tmp_path: Path) -> None:
    records = [{"sentence": " ".join(map(str, range(40))), "label": "1"}, {"sentence": "one"}]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    for name in ("site-0", "own-0", "everyone"):
        (tmp_path / f"{name}.jsonl").write_text(lines)
    (tmp_path / "federation.toml").write_text("# as it is\n")
    views = levers.write_views(tmp_path).parent
    assert (views / "federation.toml").read_text() == "# as it is\n"
    assert (views / "everyone.jsonl").read_text() == lines  # scored as it is
    seen = rows(views / "site-0.jsonl")
    assert [row["of"] for row in seen] == ["site-0"] * 4 + ["site-1"] * 4
    first, *copies = seen[:4]
    assert first == {**records[0], "of": "site-0"}
    for copy in copies:
        kept = copy["sentence"].split()
        assert copy["label"] == "1" and 20 < len(kept) < 40
        assert kept == sorted(kept, key=int)
    assert {row["sentence"] for row in seen[4:]} == {"one"}  # never nothing
    assert [row["of"] for row in rows(views / "own-0.jsonl")] == ["own-0", "own-1"]


def test_views_are_clipped_as_their_mean_would_be() -> None:
    point = Point(KINDS["sentences"], 16, 1000)
    [_, most, clip_norm] = levers.levers(point)[levers.VIEWS]
    assert (most, clip_norm) == ("privacy.max_records_per_unit=4", "privacy.clip_norm=40")
