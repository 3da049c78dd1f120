"""The benchmark of where joining pays: its federations, its runs, its table."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import border
import border_report
import border_runs
import numpy as np
import pytest
import sst2
from border_design import KINDS, QUICK, Point, Size, write_federation
from border_report import by_point, cells, chart, markdown, table
from border_runs import Entry, measured, train
from rich.console import Console

from fedpriv.config.load import load_job
from fedpriv.data.held_out import VALIDATION, is_apart
from fedpriv.errors import ConfigError, DataError, RunError
from fedpriv_comparison.runner import Runner
from fedpriv_forecasting.table import read_table

Make = Callable[..., Any]
SMALL = Size(rounds=1, held_out=24, most=8, everyone=10)
WORDS = [
    "fever",
    "cough",
    "ankle",
    "liver",
    "scan",
    "knee",
    "dose",
    "rash",
    "pulse",
    "blood",
    "clot",
    "graft",
    "lens",
    "ulcer",
    "node",
]


def text(number: int) -> str:
    drawn = random.Random(number)
    return " ".join([f"note {number}:", *(drawn.choice(WORDS) for _ in range(22))])


def notes(*counts: int) -> dict[str, list[dict[str, str]]]:
    """Made-up notes of so many specialties."""
    numbers = iter(range(sum(counts)))
    return {
        f"specialty {i}": [{"text": text(next(numbers))} for _ in range(count)]
        for i, count in enumerate(counts)
    }


def read(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_point_comes_once_and_is_no_larger_than_the_data(kind: Any) -> None:
    names = [point.name for point in kind.points]
    assert len(set(names)) == len(names)
    size = Size()
    for point in kind.points:
        held = sum(size.held_out_at(site, point) for site in range(point.sites))
        assert 100 <= held <= size.held_out
        room = {"notes": 2326, "sentences": 6300}[kind.name]
        assert point.sites * point.records + held + size.everyone <= room
        assert {0, point.sites - 1} <= set(point.scored)
        assert len(point.scored) == min(point.most_scored, point.sites)
    scored = {(point.sites, point.records, point.most_scored) for point in kind.points}
    assert len(scored) == len({(sites, records) for sites, records, _ in scored})


def test_each_record_is_at_one_place_and_only_scored_sites_hold_some_out(tmp_path: Path) -> None:
    point = Point(12, 16)
    path = write_federation(tmp_path, KINDS["notes"], point, notes(200, 60, 40), SMALL)
    places = Counter(one for file in tmp_path.glob("*.jsonl") for one in read(file))
    assert set(places.values()) == {1}
    assert len(read(tmp_path / "everyone.jsonl")) == 10
    config = load_job(path)
    assert [site.held_out is not None for site in config.sites] == [
        index in point.scored for index in range(12)
    ]
    for index in point.scored:
        rows = read(tmp_path / f"site-{index}.jsonl")
        apart = [is_apart({"text": row}, "record", 0.2, VALIDATION) for row in rows]
        assert len(rows) == 16 and 2 <= sum(apart) <= 14
        assert len(read(tmp_path / f"own-{index}.jsonl")) == 6


def test_public_records_to_begin_with_are_nobodys_and_leave_all_others_as_they_are(
    tmp_path: Path,
) -> None:
    pools, point = notes(300, 100, 40), Point(12, 16, "local")
    cold = write_federation(tmp_path / "cold", KINDS["notes"], point, pools, SMALL).parent
    warm = replace(point, warm_start=True)
    file = write_federation(tmp_path / "warm", KINDS["notes"], warm, pools, SMALL)
    for path in cold.iterdir():
        assert (file.parent / path.name).read_bytes() == path.read_bytes()
    public = read(file.parent / "public.jsonl")
    others = {row for path in cold.glob("*.jsonl") for row in read(path)}
    assert len(set(public)) == 200 and not others & set(public)
    trials = Entry(KINDS["notes"], warm, 1, file, SMALL).trials
    alone, private = trials["alone"], trials["federated"]
    assert (alone.method, alone.personal, private.method) == ("warm-start", True, "dp-lora")
    for trial in (alone, private):
        assert trial.config.synthetic is not None and trial.config.synthetic.warm_start == 16
    assert private.config.optimizer.lr < alone.config.optimizer.lr
    with pytest.raises(ConfigError, match="needs 200 records"):
        write_federation(tmp_path / "few", KINDS["notes"], warm, notes(300), SMALL)


def test_large_specialties_fill_sites_and_small_ones_are_joined(tmp_path: Path) -> None:
    pools = notes(160, 20, 20)
    write_federation(tmp_path, KINDS["notes"], Point(4, 30), pools, SMALL)
    of = {row["text"]: name for name, rows in pools.items() for row in rows}
    found = [{of[row] for row in read(tmp_path / f"site-{i}.jsonl")} for i in range(4)]
    assert found[0] == found[1] == found[2] == {"specialty 0"}
    assert found[3] >= {"specialty 1", "specialty 2"}


def test_sentences_are_whole_and_none_of_those_that_settings_were_chosen_by(tmp_path: Path) -> None:
    folder = tmp_path / "sst2"
    folder.mkdir()
    whole = [f"film {i} is long" for i in range(sst2.TUNING + 60)]
    rows = [(text, i % 2) for i, text in enumerate(whole)] + [("is long", 0), ("film 7", 1)]
    lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    pools = KINDS["sentences"].pools(tmp_path)
    assert pools.keys() == {"0", "1"}
    found = [row["sentence"] for rows in pools.values() for row in rows]
    assert len(found) == len(set(found)) == 60
    assert set(found) < set(whole)
    assert all(row["label"] == label for label, rows in pools.items() for row in rows)


def test_more_than_there_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the data does not go as far"):
        write_federation(tmp_path, KINDS["notes"], Point(4, 60), notes(200), SMALL)
    with pytest.raises(DataError) as caught:
        KINDS["notes"].pools(tmp_path)
    assert "mtsamples" in str(caught.value)


@pytest.fixture
def entry(federation: Make) -> Entry:
    """A secure sum of three small sites, of which the first and the last are scored."""
    file: Path = federation(rounds=2, sites=3)
    said = file.read_text()
    for name in ("site-0", "site-2"):
        said = said.replace(f'name = "{name}"\n', f'name = "{name}"\nheld_out = 0.4\n')
    file.write_text(said)
    size = Size(rounds=2, overrides=("personal.epochs=2", "personal.rates=[3e-2]"))
    kind = replace(KINDS["notes"], points=(Point(3, 24, seeds=3),))
    return Entry(kind, Point(3, 24), 1, file, size)


@pytest.mark.slow
def test_what_depends_on_no_terms_is_trained_once(entry: Entry, tmp_path: Path) -> None:
    """And what was measured is kept, for as long as its runs are the same."""
    local = replace(entry, point=replace(entry.point, trust="local", epsilon=2.0))
    assert entry.decides and local.decides and "lora" not in replace(entry, seed=2).trials
    train([entry, local], Runner(tmp_path / "runs"))
    runs = [path.name.rpartition("-")[0] for path in (tmp_path / "runs").glob("*.json")]
    assert Counter(runs) == {
        "base-federated": 2,  # of this seed, and of the second own model's
        "base-federated+personal": 2,
        "lora-federated": 1,
        "lora-federated+personal": 1,
        "dp-lora-federated": 2,
        "dp-lora-federated+personal": 2,
    }
    found, other = (measured(one, tmp_path) for one in (entry, local))
    assert found["scored"] == 2 and {len(each) for each in found["own"].values()} == {2}
    for name in ("base", "alone", "alone+alone", "lora", "lora+personal", "lora+fifth"):
        assert found["own"][name] == other["own"][name]
        assert found["all"].get(name) == other["all"].get(name)
    for name in ("federated", "federated+personal", "federated+fifth"):
        assert found["own"][name] != other["own"][name]
    assert found["own"]["alone"] != found["own"]["base"]
    assert (found["trust"], found["max_colluding"]) == ("secure-sum", 1)
    assert (other["trust"], other["max_colluding"]) == ("local", None)
    assert other["noise_multiplier"] > found["noise_multiplier"] > 0
    for path in (tmp_path / "runs").glob("*.npy"):
        path.unlink()
    assert measured(entry, tmp_path) == found
    with pytest.raises(RunError, match="not run"):
        measured(replace(entry, seed=5), tmp_path)


def test_the_table_says_with_what_it_was_measured(tmp_path: Path, model_folder: Make) -> None:
    """As the one that is shipped does, so that a forecast knows what has other settings."""
    file = write_federation(tmp_path, KINDS["notes"], Point(4, 16), notes(200, 200), SMALL)
    folder: Path = model_folder("llama")
    usual, other = (
        Entry(KINDS["notes"], Point(4, 16), 1, file, replace(SMALL, overrides=overrides))
        for overrides in ((), (f"model.name={folder}", "lora.r=8", "lora.alpha=8"))
    )
    told, of_other = (
        border.document([(one, {"kind": "notes", "trained": 37888})], "")["kinds"]["notes"]
        for one in (usual, other)
    )
    assert json.loads(json.dumps(told)) == read_table().kinds["notes"].model_dump(mode="json")
    assert (of_other["model"], of_other["settings"]["lora.r"]) == (folder.name, 8)


def test_two_own_models_have_equal_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(border_runs, "weighed", lambda *given: told.append(given[1:]))
    monkeypatch.setattr(border_runs, "together", lambda worker, parts: told.append(tuple(parts)))
    names = ("alone", "again", "lora+personal", "federated+personal")
    values = {name: np.array([[1.0], [2.0]]) * (i + 1) for i, name in enumerate(names)}
    values |= {"federated": np.array([9.0]), "lora": np.array([8.0])}
    worker = type("", (), {"initial": np.array([0.0])})()
    border_runs.models(worker, values, 1)  # type: ignore[arg-type]
    both = ((2.0, 0.4), (8.0, 0.4), (9.0, 0.2))
    assert told == [both, (2.0, 9.0, 0.2), (2.0, 4.0, 0.5), (2.0, 8.0, 0.2)]
    told.clear()
    few = {name: values[name] for name in ("alone", "again", "federated", "federated+personal")}
    found = border_runs.models(worker, few, 1)  # type: ignore[arg-type]
    assert told == [both, (2.0, 9.0, 0.2), (2.0, 4.0, 0.5)] and "lora" not in found


def row(records: int, seed: int = 1, **ways: float) -> dict[str, Any]:
    """A measured point: alone 3 and 4 at two sites, the other ways so much lower at both."""
    names = [*border_report.WAYS, "alone", "base"]
    own = {name: [3.0 - ways.get(name, 0.0), 4.0 - ways.get(name, 0.0)] for name in names}
    terms = {"sites": 16, "records": records, "trust": "local", "epsilon": 4.0, "seed": seed}
    return {**terms, "kind": "notes", "noise_multiplier": 1.25, "trained": 7, "own": own}


def test_the_table_says_what_joining_is_worth() -> None:
    rows = [
        row(64, 1, **{border_report.BEST: 0.3, "alone+alone": 0.1}),
        row(16, 1),
        row(64, 2, **{border_report.BEST: 0.1, "alone+alone": 0.2}),
    ]
    first, second = by_point(rows)
    assert [one["seed"] for one in first] == [1, 2] and second == [rows[1]]
    assert cells(first) == [
        *("16", "64", "local", "4", "1.25", "3.500 ± 0.000", "+0.150 ± 0.071", "+0.000 ± 0.000"),
        *("+0.000 ± 0.000", "+0.200 ± 0.141", *["+0.000 ± 0.000"] * 4, "100%", "50%"),
    ]
    assert cells(second)[-2:] == ["0%", "0%"]
    del rows[1]["own"]["alone+alone"]
    assert (cells(second)[6], cells(second)[-1]) == ("", "")
    said = markdown("Notes", rows).splitlines()
    assert said[4].split("|")[1:3] == [" 16 ", " 64 "] and len(said) == 6
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(table("Notes", rows))
    assert "a second own" in console.export_text()


def test_the_chart_has_records_across() -> None:
    svg = chart("notes", [row(16), row(64, **{border_report.BEST: 0.2}), row(250)])
    assert "16 sites, local" in svg and "records a site" in svg
    assert ">16<" in svg and ">64<" in svg and "round<" not in svg
    assert "<use " in chart("notes", [row(16)])  # a line of one point
    ElementTree.fromstring(chart("notes", [row(16)]))  # a file that other programs read, too
    assert chart("notes", [{**row(16), "epsilon": 1.0}]) == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kinds", "notes,images"], "--kinds: only notes,sentences, not images"),
        (["--points", "16x64"], "not 16x64"),
        (["--seeds", "0"], "--seeds: has to be above 0"),
        (["--limit-minutes", "-1"], "--limit-minutes: has to be above 0"),
        (["--held-out", "0"], "--held-out: has to be above 0"),
    ],
)
def test_bad_options_are_refused(
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["border.py", "DATA", *options])
    with pytest.raises(SystemExit) as caught:
        border.parsed()
    assert caught.value.code == 2 and said in capsys.readouterr().err


def test_rounds_held_out_records_and_settings_are_those_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ["--rounds", "20", "--held-out", "160", "--set", "lora.r=2"]
    monkeypatch.setattr(sys, "argv", ["border.py", "DATA", *options])
    size = border.size_of(border.parsed())
    assert size == replace(Size(), rounds=20, held_out=160, overrides=("lora.r=2",))
    assert size.rounds_of(KINDS["notes"]) == 20 and size.held_out_at(0, Point(64, 16)) == 40


def test_data_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["border.py", str(tmp_path), "--out", str(tmp_path / "out")])
    assert border.main() == 2
    assert "mtsamples.jsonl.gz" in capsys.readouterr().err


def test_points_take_turns_and_further_seeds_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(border, "write_federation", lambda folder, *given: folder / "f.toml")
    kinds = [replace(kind, pools=lambda data: {}) for kind in KINDS.values()]
    monkeypatch.setattr(border, "chosen", lambda arguments: kinds)
    monkeypatch.setattr(sys, "argv", ["border.py", "DATA", "--seeds", "2"])
    found = border.entries(border.parsed(), Size())
    names = [entry.name for entry in found]
    first = [f"{kind.name}-{kind.points[place].name}-1" for place in (0, 1) for kind in kinds]
    assert names[:4] == first
    seeds = [entry.seed for entry in found]
    assert seeds == sorted(seeds) and max(seeds) == 2
    assert seeds.count(1) == sum(len(kind.points) for kind in kinds)


def test_a_point_is_asked_for_of_every_kind_or_of_one_or_with_one_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(border, "write_federation", lambda folder, *given: folder / "f.toml")
    kinds = [replace(kind, pools=lambda data: {}) for kind in KINDS.values()]
    monkeypatch.setattr(border, "chosen", lambda arguments: kinds)
    points = "16x16-secure-4,sentences-16x64-secure-4,notes-32x32-secure-4-3"
    monkeypatch.setattr(sys, "argv", ["border.py", "DATA", "--seeds", "3", "--points", points])
    assert [entry.name for entry in border.entries(border.parsed(), Size())] == [
        "notes-16x16-secure-4-1",
        "sentences-16x16-secure-4-1",
        "sentences-16x64-secure-4-1",
        "sentences-16x64-secure-4-2",
        "sentences-16x64-secure-4-3",
        "notes-32x32-secure-4-3",
    ]


@pytest.mark.nightly
def test_a_quick_run_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data" / "mtsamples"
    folder.mkdir(parents=True)
    with gzip.open(folder / "mtsamples.jsonl.gz", "wt") as stream:
        for number in range(160):
            made = {"medical_specialty": f" {number % 3}", "first_of_group": number % 8 > 0}
            stream.write(json.dumps({**made, "transcription": text(number)}) + "\n")
    options = ["--out", "out", "--quick", "--kinds", "notes", "--json", "docs/made.json"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["border.py", "data", *options])
    assert border.main() == 0
    made = json.loads((tmp_path / "docs/made.json").read_text())
    assert made["command"].startswith("python benchmarks/border.py DATA --out out --quick")
    assert made["kinds"]["notes"]["trained"] == 37888 and made["kinds"]["notes"]["tokens"] == 128
    (point,) = made["points"]
    assert (point["sites"], point["records"], point["rounds"]) == (4, 16, QUICK.rounds)
    assert point["own"]["alone"] != point["own"]["base"]
    assert "<svg" in (tmp_path / "docs/made-notes.svg").read_text()
    assert "| 4 | 16 | secure-sum |" in (tmp_path / "out/border.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").iterdir()}
    next((tmp_path / "out/points").iterdir()).unlink()
    assert border.main() == 0
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").iterdir()}
    assert {p: t for p, t in before.items() if p.suffix == ".npy"} == {
        p: t for p, t in after.items() if p.suffix == ".npy"
    }
    assert json.loads((tmp_path / "docs/made.json").read_text()) == made
