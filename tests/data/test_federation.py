"""Data sets in memory as the folder of a federation."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticUndefined

from fedpriv.config.job import JobConfig
from fedpriv.config.load import load_job
from fedpriv.data.federation import _divided, write_federation
from fedpriv.errors import ConfigError, DataError, RunError
from fedpriv.section import Section

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


def test_outside_sites_are_written_and_have_names_of_their_own(tmp_path: Path) -> None:
    given: Any = {"sites": 2, "size": 30, "columns": {"text": "note"}, **JOB}
    file = write_federation(tmp_path / "f", rows(), rows(2), outside={"new": rows(7)}, **given)
    (outside,) = load_job(file).outside
    assert outside.name == "new" and outside.data == file.parent / "new.jsonl"
    assert (file.parent / "new.jsonl").read_text().count("\n") == 7
    with pytest.raises(ConfigError, match="takes no part"):
        write_federation(tmp_path / "g", rows(), rows(2), outside={"site-1": rows(7)}, **given)
    assert not (tmp_path / "g").exists()


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
        ({"columns": None}, DataError, "in no known format"),
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
        ({"data": {"columns": {}}}, ConfigError, "data.columns: is a separate argument"),
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


def types_in(kind: Any) -> Iterator[Any]:
    yield kind
    for part in get_args(kind):
        yield from types_in(part)


def keys_of(section: type[Section], table: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a file, as the schema has it, with its default."""
    for key, field in section.model_fields.items():
        kinds = [kind for kind in types_in(field.annotation) if isinstance(kind, type)]
        nested = [kind for kind in kinds if issubclass(kind, Section)]
        for kind in nested:
            yield from keys_of(kind, f"{table}{key}.")
        if not nested:
            yield f"{table}{key}", field.get_default(call_default_factory=True)


# For keys that have no default: a value.
GIVEN: dict[str, Any] = {
    "privacy.normalise": "adapters",
    "job.rounds": 3,
    "privacy.max_colluding": 1,
    "synthetic.data": "public.jsonl",
    "synthetic.generator.model": "embedded",
    "synthetic.generator.url": "https://example.org/v1",
    "synthetic.generator.describe": "short notes",
    "synthetic.generator.prompt": "Write a note.",
    "model.quantize": "8bit",
    "evaluation.limit": 5,
    "evaluation.tuning": "tuning.jsonl",
    "evaluation.sites.looks": 2,
    "personal.epochs": 2,
    "personal.epochs_alone": 2,
    "compute.microbatch": 1,
    "compute.gpus_per_site": 0.5,
    "compute.workers": 2,
    "tracking.mlflow": "https://example.org",
    "server.address": "127.0.0.1:9092",
    "server.listen": "127.0.0.1:9092",
    "server.pki": "keys",
    "server.health": "127.0.0.1:8080",
    "server.metrics_port": 9090,
    "statement.purpose": "to code diagnoses",
    "statement.recipients": "the hospitals of the list",
    "statement.contact": "Ada Adams, 0123",
    "statement.expires": "2030-12-31",
    "sites.transform": "deidentify.py:clean",
    "sites.held_out": 0.25,
    "sites.held_out_size": 9,
    "sites.size": 30,
    "sites.epsilon": 3.0,
    "sites.epsilon_alone": 9.0,
    "sites.ledger": "ledger.db",
    "sites.witness": "witness",
}
# What else a key, or each key that begins so, needs.
SECURE: dict[str, Any] = {"privacy": {"trust": "secure-sum"}, "job": {"min_sites": 2}}
BESIDE: dict[str, dict[str, Any]] = {
    "privacy.max_colluding": SECURE,
    "server_optimizer.": {"job": {"sync": 2}},
    "synthetic.": {"synthetic": {"data": "public.jsonl"}},
    "synthetic.generator.": {"synthetic": {"generator": {"kind": "model"}}},
    "evaluation.sites.": {
        "evaluation": {"sites": {"looks": 1}},
        "sites": {"site-1": {"held_out": 0.25}, "site-2": {"held_out": 0.25}},
    },
    "compute.gpus_per_site": {"job": {"engine": "ray"}},
    "server.": {"server": {"address": "127.0.0.1:9092"}},
    "statement.": {
        "statement": {
            "purpose": "to code",
            "recipients": "all",
            "contact": "Ada",
            "expires": "2030-01-01",
        }
    },
    "sites.held_out_size": {"sites": {"site-1": {"held_out": "own.jsonl"}}},
    "sites.epsilon_alone": SECURE,
}
# Written from the records; of another engine; or about records that are elsewhere.
NOT_GIVEN = {"sites.name", "sites.data", "data.columns", "evaluation.data"} | {
    "privacy.roster",
    "model.begin",  # what an adapter says beside it is in tests/config/test_defaults.py
}
NOT_GIVEN_TABLES = ("sites.omop.", "sites.fhir.", "outside.")


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = one | other
    for key in one.keys() & other.keys():
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            both[key] = merged(one[key], other[key])
    return both


def test_every_key_of_the_file_can_be_given(tmp_path: Path) -> None:
    """A key that is new, and has no default, needs a value in GIVEN."""
    for number, (key, default) in enumerate(keys_of(JobConfig)):
        if key in NOT_GIVEN or key.startswith(NOT_GIVEN_TABLES):
            continue
        value = GIVEN.get(key, default)
        assert value is not None and value is not PydanticUndefined, key
        table, _, rest = key.partition(".")
        given: dict[str, Any] = {"job": {"rounds": 3}, "sites": {"site-1": {}, "site-2": {}}}
        for begins, beside in BESIDE.items():
            given = merged(given, beside if key.startswith(begins) else {})
        tree: dict[str, Any] = value
        for part in reversed(rest.split(".") if rest else []):
            tree = {part: tree}
        given = merged(given, {table: {"site-1": tree} if table == "sites" else tree})
        if table == "sites":
            given["sites"]["site-2"] = given["sites"]["site-1"]
        file = write_federation(
            tmp_path / "new" / f"f{number}", rows(), rows(2), size=30,
            columns={"text": "note"}, **given,
        )  # fmt: skip
        written: Any = tomllib.loads(file.read_text())
        for part in key.split("."):
            written = written[0][part] if isinstance(written, list) else written[part]
        assert written == (list(value) if isinstance(value, tuple) else value), key


def test_a_site_has_keys_of_its_own_and_a_path_is_one_of_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys: Any = {"north": {"epsilon": 2.0, "size": 11}, "south": {"ledger": Path("south.db")}}
    given: Any = {"columns": {"text": "note"}, "size": 30, **JOB}
    for number, found in enumerate((rows(), {"north": rows(2), "south": rows(2)})):
        file = write_federation(f"new/{number}", found, rows(2), sites=keys, **given)
        north, south = load_job(file).sites
        assert (north.name, north.epsilon, north.size) == ("north", 2.0, 11)
        assert (south.epsilon, south.size, south.ledger) == (None, 30, tmp_path / "south.db")
    named = {"north": rows(2)}
    for wrong, words in (
        ({"sites": keys}, "sites: have no records (got ['south'])"),
        ({"sites": {"north": {"data": "x"}}}, "sites.north.data: is a separate argument"),
        ({"sites": {"north": {"epsilon": -1}}}, "sites.north.epsilon"),
        ({"sites": {"north": {"epsilom": 1}}}, "Did you mean 'epsilon'?"),
        ({"evaluation": {"data": "x"}}, "evaluation.data: is a separate argument"),
    ):
        with pytest.raises(ConfigError) as refused:
            write_federation("never", named, rows(2), **given, **wrong)
        assert words in str(refused.value) and not Path("never").exists()


@pytest.mark.parametrize("kind", ["DataFrame", "data set"])
def test_records_may_be_held_by_column(kind: str, tmp_path: Path) -> None:
    columns = {key: [row[key] for row in rows(8)] for key in ("note", "mrn")}
    made: Any = {"DataFrame": pandas.DataFrame, "data set": Dataset.from_dict}[kind]
    given: Any = {"size": 30, "columns": {"text": "note"}, "privacy": {"unit": "mrn"}, **JOB}
    files = [
        write_federation(tmp_path / "a", made(columns), made(columns), sites=2, **given),
        write_federation(tmp_path / "b", rows(8), evaluation=made(columns), sites=2, **given),
    ]
    one, other = ({p.name: p.read_bytes() for p in file.parent.iterdir()} for file in files)
    assert {n: one[n] for n in one if n != "federation.toml"} == {
        n: other[n] for n in other if n != "federation.toml"
    }
    file = write_federation(tmp_path / "c", {"one": made(columns)}, rows(2), **given)
    assert (file.parent / "one.jsonl").read_text().count("\n") == 8


def test_a_dictionary_of_columns_is_refused_with_what_to_give(tmp_path: Path) -> None:
    columns: Any = {"text": ["a", "b"], "mrn": [1, 2]}
    for records, sites in ((columns, 2), (columns, None), ({"one": columns}, None)):
        with pytest.raises((ConfigError, DataError), match=r"datasets\.Dataset\.from_dict"):
            write_federation(tmp_path / "a", records, rows(2), sites=sites, size=30, **JOB)


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
