"""The federations of `benchmarks/joining.py`, and the tables that its pages show."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import ConfigError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import joining  # noqa: E402
import joining_report as report  # noqa: E402
from joining_data import Apart, Kind, pieces, scored_sites, write_federation  # noqa: E402

from fedpriv.config.load import load_job  # noqa: E402
from fedpriv_forecasting.table import SHIPPED, read_table  # noqa: E402


def groups(data: Path) -> list[list[dict[str, Any]]]:
    """Of three records each."""
    return [[{"text": f"group {g} record {r}"} for r in range(3)] for g in range(600)]


def kind(**changes: Any) -> Kind:
    given: dict[str, Any] = {
        "name": "made-up",
        "says": "made-up texts",
        "groups": groups,
        "settings": '[data]\ncolumns = { text = "text" }\n',
        "batch": 60,
        "rates": (1e-2,),
        "own_rates": (1e-3,),
        "own_passes": 2,
        "apart": Apart(own=20, choose=20, report=20, everyone=30, public=30),
    }
    return Kind(**(given | changes))


def test_no_group_is_in_two_files_and_all_have_what_they_need() -> None:
    found = pieces(kind(), Path(), sites=6, records=100)
    owner: dict[str, str] = {}
    for name, rows in found.items():
        for row in rows:
            group = row["text"].partition(" record")[0]
            assert owner.setdefault(group, name) == name
    assert {name: len(rows) for name, rows in found.items() if name.startswith("site")} == {
        f"site-{index}": 100 for index in range(6)
    }
    assert {name for name in found if name.startswith("own")} == {
        f"own-{index}" for index in scored_sites(6)
    }
    assert len(found["outside-0"]) == 64 and len(found["apart-1"]) == 40
    assert len({row["text"].partition(" record")[0] for row in found["outside-0"]}) == 64
    assert found == pieces(kind(), Path(), sites=6, records=100)


def test_sites_lie_in_the_order_of_the_records_and_outside_ones_between_them() -> None:
    found = pieces(kind(), Path(), sites=6, records=100)

    def place(name: str) -> float:
        places = [int(row["text"].split()[1]) for row in found[name]]
        return sum(places) / len(places)

    order = sorted((f"site-{i}" for i in range(6)), key=place)
    assert order == [f"site-{i}" for i in range(6)]
    assert place("site-1") < place("outside-0") < place("site-2")
    assert place("site-3") < place("outside-1") < place("site-4")


def test_too_few_records_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs .* records where .* are left"):
        pieces(kind(), Path(), sites=6, records=300)


def test_a_federation_is_a_file_that_can_be_used(tmp_path: Path) -> None:
    file = write_federation(tmp_path / "one", kind(), Path(), 6, 100)
    job = load_job(file, ["privacy.trust=secure-sum", "privacy.epsilon=4"])
    assert [site.size for site in job.sites] == [100] * 6
    assert job.privacy.sample_rate == pytest.approx(0.1)
    assert job.max_colluding == 2  # an honest majority


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([0.02, 0.04], "**pays** (+0.030)"),
        ([-0.02, -0.04], "does not (-0.030)"),
        ([0.05, -0.01], "mixed (+0.020, better at 1 of 2)"),
        ([0.01, -0.01], "level (+0.000)"),
        ([0.005, 0.007], "level (+0.006)"),
    ],
)
def test_a_verdict_needs_all_sites_and_more_than_a_hundredth(gains: list[float], said: str) -> None:
    assert report.verdict(gains) == said


def test_every_point_has_a_name_of_its_own_and_twelve_are_no_repetition() -> None:
    names = [point.name for point in joining.POINTS]
    assert len(set(names)) == len(names)
    assert len({name.rpartition("-")[0] for name in names}) >= 12


def test_the_pages_have_the_tables_of_the_figures() -> None:
    for path, text in report.with_tables(ROOT / "docs/results/joining"):
        assert path.read_text(encoding="utf-8") == text, "benchmarks/joining.py DATA --tables"


def test_a_forecast_reads_the_figures() -> None:
    folder = ROOT / "docs/results/joining"
    table = read_table(folder / "table.json")
    assert json.loads((folder / "table.json").read_text()) == report.forecast_table(folder)
    assert all(point.outside and point.new for point in table.points)
    assert json.loads(SHIPPED.read_text()) == report.shipped_table(folder)
    assert read_table().of("notes") and read_table().of("hospital-sentences")
