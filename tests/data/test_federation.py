"""Data sets in memory as the folder of a federation."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.config.load import load_job
from fedpriv.data.federation import _divided, write_federation
from fedpriv.errors import ConfigError, DataError, RunError

JOB: dict[str, Any] = {"job": {"rounds": 2}}


def rows(count: int = 40) -> list[dict[str, Any]]:
    return [{"note": f"note {i}", "mrn": i // 4, "doctor": "secret"} for i in range(count)]


def test_it_writes_what_the_commands_read(tmp_path: Path) -> None:
    folder = tmp_path / "hospitals"
    parts = {"north": Dataset.from_list(rows(8)), "south": rows(12)}
    file = write_federation(
        folder,
        parts,
        rows(3),
        size={"north": 10, "south": 20},
        columns={"text": "note"},
        privacy={"epsilon": 3.0, "unit": "mrn", "delta": 1e-3},
        **JOB,
    )
    job = load_job(file)
    assert job.job.name == "hospitals" and job.privacy.unit == "mrn"
    assert [(s.name, s.size, s.data) for s in job.sites] == [
        ("north", 10, folder / "north.jsonl"),
        ("south", 20, folder / "south.jsonl"),
    ]
    written = [json.loads(line) for line in (folder / "north.jsonl").read_text().splitlines()]
    assert written == [{"note": row["note"], "mrn": str(row["mrn"])} for row in rows(8)]
    assert len((folder / "evaluation.jsonl").read_text().splitlines()) == 3
    assert folder.stat().st_mode & 0o77 == (folder / "north.jsonl").stat().st_mode & 0o77 == 0


@given(st.lists(st.integers(0, 30), min_size=1), st.integers(0, 30), st.integers(1, 5))
def test_a_unit_is_at_one_site_and_moves_no_other(units: list[int], more: int, sites: int) -> None:
    def divided(people: list[int]) -> dict[str, list[Any]]:
        found = [{"note": f"note {i}", "mrn": who} for i, who in enumerate(people)]
        return _divided(found, sites, ["note", "mrn"], "mrn")  # type: ignore[return-value]

    before, after = divided(units), divided([*units, more])
    homes = {int(row["mrn"]): name for name, own in after.items() for row in own}
    assert all(homes[int(row["mrn"])] == name for name, own in after.items() for row in own)
    changed = [name for name in after if after[name] != before[name]]
    assert changed == [homes[more]]


def test_one_person_is_at_one_site_however_the_number_is_written(tmp_path: Path) -> None:
    ways = (7, 7.0, "7.0", " 7", Decimal("7.00"))
    found = [{"note": f"note {i}", "mrn": way} for i, way in enumerate(ways)]
    parts: Any = {"sites": 50, "size": 2, "columns": {"text": "note"}, "privacy": {"unit": "mrn"}}
    file = write_federation(tmp_path / "f", found, [{"note": "of nobody"}], **parts, **JOB)
    written = [path.read_text().count("\n") for path in file.parent.glob("site-*.jsonl")]
    assert sorted(written)[-2:] == [0, 5]


def test_many_units_are_divided_about_evenly() -> None:
    divided = _divided(rows(4000), 4, ["note"], "record")
    assert sorted(divided) == ["site-1", "site-2", "site-3", "site-4"]
    assert all(850 < len(own) < 1150 for own in divided.values())


def test_a_size_is_counted_of_public_records_alone(tmp_path: Path) -> None:
    given: Any = {"columns": {"text": "note"}, "privacy": {"unit": "mrn", "delta": 1e-3}}
    with pytest.raises(ConfigError, match="size: is missing for one"):
        write_federation(tmp_path / "f", {"one": rows()}, rows(2), **given, **JOB)
    public = {"job": {"rounds": 2, "data_is_public": True}}
    file = write_federation(tmp_path / "f", {"one": rows()}, rows(2), **given, **public)
    assert [site.size for site in load_job(file).sites] == [10]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"sites": None}, ConfigError, "sites: is missing"),
        ({"columns": None}, DataError, "no format that is known"),
        ({"columns": {"text": "notes"}}, DataError, "row 1 has no such column (got 'notes')"),
        ({"job": {"rounds": 0}}, ConfigError, "federation.toml: job.rounds"),
        ({"jobs": {"rounds": 1}}, ConfigError, "Did you mean 'job'?"),
        ({"privacy": {"unit": "patient"}}, DataError, "got 'patient'"),
        ({"sites": ["north", "../south"]}, ConfigError, "federation.toml: sites.1.name"),
        ({"sites": ["north", "north"]}, ConfigError, "sites: name one site twice"),
        ({"sites": 0}, ConfigError, "greater than or equal to 1"),
        ({"size": "many"}, ConfigError, "size: is str 'many'"),
        ({"lora": None}, ConfigError, "lora: is None"),
        ({"lora": {"r": {1, 2}}}, ConfigError, "hold what a file can't"),
        ({"lora": {1: 2}}, ConfigError, "lora.1.[key]: is int 1"),
        ({"data": {"columns": {}}}, ConfigError, "data.columns: is an argument of its own"),
    ],
)
def test_what_cannot_be_leaves_nothing_behind(
    tmp_path: Path, changes: Any, error: Any, words: str
) -> None:
    settings = {"sites": 2, "size": 30, "columns": {"text": "note"}, **JOB, **changes}
    with pytest.raises(error) as found:
        write_federation(tmp_path / "f", rows(), rows(2), **settings)
    assert words in str(found.value)
    assert "tmp" not in str(found.value).replace(str(tmp_path), "")
    assert "secret" not in str(found.value) and list(tmp_path.iterdir()) == []


def test_splits_are_no_sites(tmp_path: Path) -> None:
    splits = Dataset.from_list(rows()).train_test_split(0.5)
    with pytest.raises(ConfigError, match="a test split is no site"):
        write_federation(tmp_path / "f", splits, rows(2), size=30, columns={"text": "note"}, **JOB)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(RunError, match="is not empty"):
        write_federation(tmp_path, rows(), rows(2), sites=2, size=30, **JOB)


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    given: Any = {"size": 30, "sites": 2, "columns": {"text": "note"}}
    assert write_federation(tmp_path / "a" / "b", rows(), rows(2), **given, **JOB).is_file()
    (tmp_path / "file").write_text("x")
    for inside in (tmp_path / "file", tmp_path / "file" / "f"):
        with pytest.raises(RunError, match=r"is not empty|can't be written"):
            write_federation(inside, rows(), rows(2), **given, **JOB)
    with pytest.raises(ConfigError):
        write_federation(tmp_path / "c" / "d", rows(), rows(2), **given, job={"rounds": 0})
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"note": b"secret", "mrn": 1}, "row 3 holds a value of type bytes"),
        ({"note": ["secret", b"x"], "mrn": 1}, "row 3 holds a value of type bytes"),
        ({"note": object(), "mrn": 1}, "row 3 holds a value of type object"),
        ({"note": "secret", "mrn": b"1"}, "row 3 holds a value of type bytes"),
        ({"note": "secret", "mrn": None}, "row 3 has no unit id"),
        ({"note": "secret", "mrn": "N/A"}, "row 3 has no unit id"),
        ({"note": "secret", "mrn": 2.0**53}, "row 3 has a unit id that is a rounded number"),
        ({"note": "secret", "mrn": True}, "row 3 has a unit id that is a truth value"),
        ("secret", "row 3 is a str"),
    ],
)
def test_what_readers_refuse_is_not_written(tmp_path: Path, odd: Any, said: str) -> None:
    given: Any = {"size": 30, "columns": {"text": "note"}, "privacy": {"unit": "mrn"}}
    with pytest.raises(DataError, match=said) as caught:
        write_federation(tmp_path / "f", {"one": [*rows(2), odd]}, rows(2), **given, **JOB)
    assert "secret" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_half_a_surrogate_is_written_as_it_is_read(tmp_path: Path) -> None:
    found = [{"note": "a \ud800 b", "mrn": 1}, {"note": Decimal("7.00"), "mrn": np.float32(2)}]
    given: Any = {"size": 30, "columns": {"text": "note"}, "privacy": {"unit": "mrn"}}
    file = write_federation(tmp_path / "f", {"one": found}, rows(2), **given, **JOB)
    lines = (file.parent / "one.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(map(json.loads, lines)) == [
        {"note": "a ? b", "mrn": "1"},
        {"note": "7", "mrn": "2"},
    ]


def test_every_table_of_the_file_is_an_argument(tmp_path: Path) -> None:
    given: Any = {
        "sites": 2,
        "size": 30,
        "columns": {"text": "note"},
        "evaluation": {"every": 5, "limit": None},
        "data": {"max_empty": 0.25},
        "model": {"name": tmp_path},
        "lora": {"r": 2, "alpha": 2.0},
        "optimizer": {"lr": 0.1},
        "privacy": {"sample_rate": 0.1, "clip_norm": 0.1},
        **JOB,
    }
    job = load_job(write_federation(tmp_path / "new" / "f", rows(), rows(2), **given))
    assert job.evaluation.every == 5 and job.evaluation.limit is None
    assert job.data.max_empty == 0.25 and job.model.name == str(tmp_path)
    given["evaluation"] = rows(3)  # as the records alone
    del given["data"]
    file = write_federation(tmp_path / "g", rows(), **given)
    assert (file.parent / "evaluation.jsonl").read_text().count("\n") == 3
    for wrong, words in (({"every": 5}, "public: is missing"), (None, "public: is missing")):
        with pytest.raises(ConfigError, match=words):
            write_federation(tmp_path / "h", rows(), **{**given, "evaluation": wrong})
    with pytest.raises(ConfigError, match="evaluation: is a list"):
        write_federation(tmp_path / "h", rows(), rows(2), **given)


def test_classes_and_gaps_are_written_as_they_are_read(tmp_path: Path) -> None:
    names = ["no", "yes"]
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    found = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    given: Any = {"size": 30, "model": {"task": "classification", "labels": names}, **JOB}
    parts = {"one": Dataset.from_list(found, features=features).with_format("torch")}
    gaps = [{"text": "a", "label": pandas.NA}, {"text": float("nan"), "label": "no"}]
    file = write_federation(tmp_path / "f", parts, gaps, **given)
    read = [json.loads(line) for line in (file.parent / "one.jsonl").read_text().splitlines()]
    assert read == [{"text": "a", "label": "yes"}, {"text": "b", "label": "no"}]
    lines = (file.parent / "evaluation.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"text": "a", "label": None},
        {"text": None, "label": "no"},
    ]
