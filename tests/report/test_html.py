"""The page: self-contained, safe against what it shows, and true to the files."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.auditing.result import Audit, Measure
from fedpriv.errors import ConfigError, RunError
from fedpriv.report import budget, received
from fedpriv.report.budget import BudgetEvent, BudgetReport
from fedpriv.report.charts import LABEL_HEIGHT, spread, thin
from fedpriv.report.figures import (
    TIE,
    last_loss,
    lower,
    ranges,
    small,
    upper,
    worse,
    worse_by_now,
)
from fedpriv.report.html import write_report

HOSTILE = '<script src="http://evil.example/x.js"></script>&$x_1$--><img onerror=alert(1)>'
MakeRun = Callable[..., Path]


class Page(HTMLParser):
    """The tags, values and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.in_body = False
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.in_body |= tag == "body"

    def handle_data(self, data: str) -> None:
        if self.in_body:
            self.text += data

    @property
    def values(self) -> list[float]:
        return [float(attrs["value"] or "") for tag, attrs in self.tags if tag == "data"]

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


ALONE = {
    "epsilon_alone_spent": 4.25,
    "epsilon_alone_allocated": 7.5,
    "epsilon_alone_committed": 21.5,
    "budget_alone": 21.5,
    "max_colluding": 1,
    "trust_model": budget.trust_model(1),
}


def claim(site: str, rounds: int, **changes: Any) -> BudgetReport:
    number = sum(site.encode())
    fields: dict[str, Any] = {
        "site": site,
        "dataset_id": f"{number:032x}",
        "unit": "record",
        "max_records_per_unit": 4,
        "delta": 1e-5,
        "declared_size": 250 + number,
        "accountant": "PRV, upper bound",
        "assumptions": ("The ledger was not rolled back.",),
        "private": True,
        "simulated": False,
        "epsilon_spent": 2.0 + number / 1013,
        "guarantee": "the one plan of this ledger in full",
        "epsilon_allocated": 3.0 + number / 1013,
        "epsilon_committed": 3.0 + number / 1013,
        "budget": 10.0,
        "events": tuple(
            BudgetEvent(job="trial", round=1, sample_rate=0.05, noise_multiplier=1.25, count=rounds)
            for _ in range(min(rounds, 1))
        ),
        "ledger_head": f"{number:064x}",
        "ledger_rows": 2 * rounds,
        "job": "trial",
    }
    return BudgetReport(**fields | changes)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        sites: int = 2,
        rounds: int = 6,
        key: Ed25519PrivateKey | None = None,
        changes: dict[str, Any] | None = None,
        **run_changes: Any,
    ) -> Path:
        names = [f"site-{i:02d}" for i in range(sites)]
        run = {
            "format": 1,
            "job": {"name": "trial", "method": "dp-lora", "rounds": max(rounds, 1), "seed": 0},
            "job_id": "0123",
            "status": "finished",
            "started": "2026-11-21T01:05:12+00:00",
            "finished": "2026-11-21T01:19:40+00:00",
            "config_digest": "sha256:00",
            "versions": {"fedpriv": "0.1.0", "torch": "2.13.0"},
            "model": {"name": "embedded", "task": "causal-lm", "digest": "d", "trainable": 49152},
            "private": True,
            "seeds": {"public": 0},
            "baseline": {"eval_loss": 3.4123456, "eval_accuracy": 0.31},
        }
        (tmp_path / "run.json").write_text(json.dumps(run | run_changes))
        with (tmp_path / "metrics.jsonl").open("w") as stream:
            for number in range(1, rounds + 1):
                row = {
                    "round": number,
                    "eval_loss": None if number % 2 else 3.4 - 0.1 * number / rounds,
                    "eval_accuracy": None if number % 2 else 0.31 + 0.1 * number / rounds,
                    "bytes_up": 1000 * sites + number,
                    "bytes_down": 3000,
                    "seconds": 0.25 * number,
                    "sites": {
                        name: {
                            "epsilon_spent": (1 + i / 7) * number / rounds,
                            "epsilon_committed": 3.0,
                            "status": "timeout" if (i, number) == (1, 3) else "ok",
                            "noise_multiplier": 1.25,
                        }
                        for i, name in enumerate(names)
                    },
                }
                stream.write(json.dumps(row) + "\n")
        for name in names:
            folder = tmp_path / "sites" / name
            folder.mkdir(parents=True)
            report = claim(name, rounds, **(changes or {}))
            received.write(budget.sign(report, key) if key else report, folder / "budget.json")
        return tmp_path

    return make


def test_the_page_needs_nothing_but_itself(make_run: MakeRun) -> None:
    page = Page(write_report(make_run(sites=4)))
    assert not {"script", "link", "img", "iframe", "base"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert (attributes.get(name) or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    assert "@import" not in page.source
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", page.source))


def test_ids_are_unique_so_that_no_chart_borrows_from_a_hidden_one(make_run: MakeRun) -> None:
    page = Page(write_report(make_run(sites=4)))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert ids
    assert len(ids) == len(set(ids))
    uses = set(re.findall(r'(?:url\(|xlink:href=")#([^)"]+)', page.source))
    assert uses <= set(ids)


def test_numbers_are_those_of_the_files(make_run: MakeRun) -> None:
    run = make_run(sites=3, rounds=6)
    page = Page(write_report(run))
    reports = [budget.read(path) for path in sorted(run.glob("sites/*/budget.json"))]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for report in reports:
        for field in ("epsilon_spent", "epsilon_committed", "budget", "delta", "ledger_rows"):
            assert getattr(report, field) in page.values
        assert f"{report.site} {upper(report.epsilon_spent)} " in page.words
        assert report.dataset_id in page.words
        assert report.ledger_head in page.words
    worst = max(reports, key=lambda report: report.epsilon_committed)
    assert f"Largest ε committed {upper(worst.epsilon_committed)} of 10.000" in page.words
    assert "Held-out loss 3.412 → 3.300" in page.words
    assert "Next-token accuracy 0.310 → 0.410" in page.words
    for column in ("bytes_up", "bytes_down", "seconds"):
        assert sum(row[column] for row in rows) in page.values
    total = received.totals(reports)
    assert f"Σε = {upper(total['epsilon'])} and Σδ = 3e-5" in page.words
    assert "site-01 5 of 6 timeout: 3" in page.words
    assert "site-02 6 of 6 none" in page.words


def test_sites_that_differ_are_named_and_the_many_are_not(make_run: MakeRun) -> None:
    run = make_run(sites=12)
    path = run / "sites" / "site-03" / "budget.json"
    received.write(budget.read(path).model_copy(update={"unit": "patient_nbr"}), path)
    words = Page(write_report(run)).words
    assert "not as a whole (all others)." in words
    assert "one value of patient_nbr (site-03)." in words


def test_both_claims_are_shown_with_what_they_mean(make_run: MakeRun) -> None:
    run = make_run(sites=3)
    one = Page(write_report(run)).words
    assert "With trust, and alone" not in one and "is common to its sites" not in one
    path = run / "sites" / "site-01" / "budget.json"
    received.write(budget.read(path).model_copy(update=ALONE), path)
    page = Page(write_report(run))
    assert {21.5, 4.25, 7.5} <= set(page.values)
    for part in (
        "With trust is ε as above: what protects their records as long as no more",
        "Alone is ε if every other site in the sum does",
        "at most 1 of them work with the server",
        "the noise of such a sum is common to its sites, and covers one of them",
    ):
        assert part in page.words
    rows = page.words.split("Budget alone ")[1].split("Budgets for life")[0]
    assert rows.startswith("site-01 1 ") and "site-00" not in rows
    life = page.words.split("Budgets for life")[1].split("In the bars")[0]
    assert "site-01 with trust" in life and "site-01 alone 4.250 7.500 21.500 14.000" in life
    unused = ALONE | {"max_colluding": None, "trust_model": budget.trust_model(None)}
    received.write(budget.read(path).model_copy(update=unused), path)
    assert "no secure sum yet" in Page(write_report(run)).words


def test_the_first_figure_says_whom_it_trusts(make_run: MakeRun) -> None:
    run = make_run(sites=1)
    path = run / "sites" / "site-00" / "budget.json"
    received.write(budget.read(path).model_copy(update=ALONE), path)
    first = Page(write_report(run)).words.split("Largest ε committed")[1].split("Sent by")[0]
    assert "if at most 1 of a sum's sites works with the server; alone" in first
    assert upper(budget.read(path).epsilon_alone_committed) in first


def test_auc_is_shown_where_it_was_measured(make_run: MakeRun) -> None:
    run = make_run(baseline={"eval_loss": 1.0, "eval_accuracy": 0.5, "eval_auc": 0.525})
    assert "AUC 0.525 → –" not in Page(write_report(run)).words
    path = run / "metrics.jsonl"
    path.write_text(
        path.read_text().replace('"eval_loss": 3.3,', '"eval_loss": 3.3, "eval_auc": 0.75,')
    )
    assert "AUC 0.525 → 0.750" in Page(write_report(run)).words


def test_what_denoising_found_is_shown_beside_what_chance_would(make_run: MakeRun) -> None:
    run = make_run()
    assert "Denoising" not in Page(write_report(run)).words
    path = run / "metrics.jsonl"
    found = '"bytes_down": 3000, "denoised": {"on": 3, "matrices": 16, "by_chance": 0.4},'
    found += ' "synthetic": {"digest": "sha256:00", "made": 4, "entropy": 0.5, "seconds": 0.1},'
    found += ' "gate": {"taken": "denoised × 0.5", "losses": {}, "records": 9},'  # of old runs
    path.write_text(path.read_text().replace('"bytes_down": 3000,', found))
    words = Page(write_report(run)).words
    assert "in 18.8% of the gradients' matrices; in noise alone it would be 2.5%." in words
    assert "24 records of the synthetic set were made anew" in words


@pytest.mark.parametrize(
    "run_changes",
    [
        {"job": {"name": HOSTILE, "method": HOSTILE, "rounds": 3}, "job_id": HOSTILE},
        {"versions": {HOSTILE: HOSTILE}, "seeds": {HOSTILE: HOSTILE}},
        {"model": {"name": HOSTILE, "task": HOSTILE, "digest": HOSTILE}},
    ],
)
def test_hostile_text_of_the_run_stays_text(make_run: MakeRun, run_changes: Any) -> None:
    page = Page(write_report(make_run(**run_changes)))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert HOSTILE in page.text


@pytest.mark.parametrize("trainable", [[HOSTILE], {}, HOSTILE, "5", -1, 1.5, True, 10**4000])
def test_a_count_that_is_none_is_shown_or_refused_with_its_key(
    make_run: MakeRun, trainable: Any
) -> None:
    model = {"name": "m", "task": "causal-lm", "digest": "d", "trainable": trainable}
    run = make_run(model=model)
    try:
        page = Page(write_report(run))
    except ConfigError as error:
        assert error.key == "model.trainable" and error.file == run / "run.json"
    else:
        assert not {"script", "img"} & {tag for tag, _ in page.tags}


def test_hostile_text_of_a_site_stays_text(make_run: MakeRun) -> None:
    run = make_run(changes={"unit": HOSTILE, "accountant": HOSTILE, "assumptions": (HOSTILE,)})
    path = run / "metrics.jsonl"
    hostile = json.dumps(HOSTILE)[1:-1]
    path.write_text(path.read_text().replace("site-01", hostile).replace("timeout", hostile))
    page = Page(write_report(run))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert page.text.count(HOSTILE) >= 3
    assert "No budget report from <script" in page.text


def test_a_run_that_is_not_private_says_so_first(make_run: MakeRun) -> None:
    page = Page(write_report(make_run(changes={"private": False})))
    assert page.words.startswith("NOT PRIVATE The figures of site-00, site-01 promise nothing")


def test_a_run_stamped_not_private_says_so_whatever_the_sites_say(make_run: MakeRun) -> None:
    assert Page(write_report(make_run(private=False))).words.startswith("NOT PRIVATE")


def test_a_private_run_over_the_network_has_no_banner(make_run: MakeRun) -> None:
    words = Page(write_report(make_run())).words
    assert words.startswith("Privacy and utility report trial")
    assert "NOT PRIVATE" not in words


def test_a_simulation_says_so(make_run: MakeRun) -> None:
    assert Page(write_report(make_run(changes={"simulated": True}))).words.startswith("Simulation.")


def test_signatures_are_checked(make_run: MakeRun) -> None:
    run = make_run(key=Ed25519PrivateKey.generate())
    assert Page(write_report(run)).words.count("· signature valid") == 2
    path = run / "sites" / "site-01" / "budget.json"
    received.write(budget.read(path).model_copy(update={"epsilon_committed": 0.5}), path)
    words = Page(write_report(run)).words
    assert words.startswith("Signature does not match The budget report of site-01 was changed")
    assert words.count("· signature valid") == 1


def test_a_delta_that_allows_publishing_a_unit_is_pointed_out(make_run: MakeRun) -> None:
    words = Page(write_report(make_run(changes={"delta": 0.5}))).words
    assert "It is not for site-00, site-01" in words


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_a_job_without_a_round_so_far_has_a_page(make_run: MakeRun, status: str) -> None:
    run = make_run(rounds=0, status=status, finished=None)
    words = Page(write_report(run)).words
    assert "No round has been completed yet" in words
    assert "before; not evaluated since" in words
    (run / "metrics.jsonl").unlink()
    again = Page(write_report(run)).words
    as_of = r"As of \d\d:\d\d:\d\d UTC"
    assert re.sub(as_of, "", again) == re.sub(as_of, "", words)


def test_a_job_before_its_first_site_has_a_page(make_run: MakeRun) -> None:
    run = make_run(sites=0, rounds=0, status="running", finished=None, baseline=None)
    assert "No site has reported yet." in Page(write_report(run)).words


def test_a_run_that_has_not_begun_has_nothing_to_report(make_run: MakeRun) -> None:
    run = make_run(sites=0, rounds=0, status="preparing", model=None)
    with pytest.raises(RunError, match="has not begun"):
        write_report(run)


def test_a_line_that_is_still_being_written_is_left_out(make_run: MakeRun) -> None:
    run = make_run(rounds=6, status="running", finished=None)
    path = run / "metrics.jsonl"
    path.write_text(path.read_text()[:-40])
    assert "Running: 5 of 6 rounds" in Page(write_report(run)).words


def test_a_browser_reads_the_page_again_for_as_long_as_the_job_runs(make_run: MakeRun) -> None:
    run = make_run(status="running", finished=None)
    page = Page(write_report(run))
    refresh = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "refresh"]
    assert refresh == ["20"]
    assert f"again every {refresh[0]} seconds" in page.words
    bar = next(a for tag, a in page.tags if tag == "progress")
    assert (bar["value"], bar["max"]) == ("6", "6")
    for status in ("interrupted", "finished"):
        info = json.loads((run / "run.json").read_text()) | {"status": status}
        (run / "run.json").write_text(json.dumps(info))
        page = Page(write_report(run))
        assert not any("http-equiv" in attributes for _, attributes in page.tags)
        assert "progress" not in {tag for tag, _ in page.tags}


def test_a_killed_job_is_not_said_to_run(make_run: MakeRun) -> None:
    """A process that was killed left run.json as it was."""
    run = make_run(status="running", finished=None)
    page = Page(write_report(run, alive=False))
    assert "Interrupted after 6 of 6 rounds" in page.words and "Running:" not in page.words
    assert not any("http-equiv" in attributes for _, attributes in page.tags)


def test_a_report_that_was_signed_before_the_job_went_on_is_told(make_run: MakeRun) -> None:
    run = make_run(status="running", finished=None)
    assert "Older than the job" not in Page(write_report(run)).words
    path = run / "sites" / "site-01" / "budget.json"
    old = budget.read(path).model_copy(update={"epsilon_spent": 0.5, "signature": None})
    received.write(budget.sign(old, Ed25519PrivateKey.generate()), path)
    said = Page(write_report(run)).words
    assert "Older than the job. site-01 signed before" in said and "has come yet" in said
    info = json.loads((run / "run.json").read_text()) | {"status": "finished"}
    (run / "run.json").write_text(json.dumps(info))
    assert "no newer report came: more is spent" in Page(write_report(run)).words


def test_before_reports_are_signed_the_word_of_the_sites_is_shown_as_such(
    make_run: MakeRun,
) -> None:
    run = make_run(status="running", finished=None)
    assert "as it said last" not in Page(write_report(run)).words
    shutil.rmtree(run / "sites")
    page = Page(write_report(run))
    assert "No budget report from site-00, site-01: nothing is claimed here for them." in page.words
    assert "Sites sign their reports when the job has ended." in page.words
    assert "as it said last site-00 6 of 6 none 1.000" in page.words
    assert 8 / 7 in page.values


def test_tables_have_captions_and_every_cell_its_headings(make_run: MakeRun) -> None:
    run = make_run(sites=3, status="running", finished=None)
    page = Page(write_report(run))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("table") == 3
    assert tags.count("caption") == tags.count("table")
    for tag, attributes in page.tags:
        assert tag != "th" or attributes["scope"] in ("col", "row")
        assert (
            tag != "label"
            or {"id": attributes["for"]}.items()
            <= next(found for name, found in page.tags if name == "progress").items()
        )
    assert tags.count("main") == tags.count("h1") == 1


def test_a_model_that_diverged_has_a_page(make_run: MakeRun) -> None:
    run = make_run()
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"eval_loss": 3.3,', '"eval_loss": NaN,'))
    assert "Held-out loss 3.412 → not finite" in Page(write_report(run)).words


def test_many_sites_with_the_same_figures_share_a_row(make_run: MakeRun) -> None:
    run = make_run(sites=12)
    paths = sorted(run.glob("sites/*/budget.json"))
    same = budget.read(paths[0])
    for path in paths[1:]:
        report = budget.read(path)
        changes = {"site": report.site, "dataset_id": report.dataset_id, "signature": None}
        received.write(same.model_copy(update=changes), path)
    page = Page(write_report(run))
    spent, _, after = page.words.partition("Privacy, site by site")[2].partition("Budgets for life")
    assert spent.count(f"each of 12 {same.site}, ") == 1 and paths[-1].parent.name in spent
    assert after.partition("Who took part")[0].count("each of 12") == 1
    other = budget.read(paths[5])
    received.write(other.model_copy(update={"epsilon_spent": 2.9}), paths[5])
    spent = Page(write_report(run)).words.partition("Privacy, site by site")[2]
    assert "each of 11" in spent and f"{other.site} 2.900 " in spent


@pytest.mark.nightly
def test_fifty_sites_and_many_rounds_stay_small_and_the_same(make_run: MakeRun) -> None:
    path = write_report(make_run(sites=50, rounds=300))
    first = path.read_bytes()
    assert len(first) < 1_000_000
    assert write_report(path.parent).read_bytes() == first


def test_very_many_rounds_stay_small(make_run: MakeRun) -> None:
    path = write_report(make_run(sites=2, rounds=5000))
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("run.json", None, RunError),
        ("run.json", "{", ConfigError),
        ("run.json", "{}", ConfigError),
        ("metrics.jsonl", None, RunError),
        ("metrics.jsonl", '{"round": 1}\n', ConfigError),
        ("metrics.jsonl", '{"round": 1', ConfigError),
        ("sites/site-00/budget.json", "[]", ConfigError),
    ],
)
def test_what_can_not_be_read_is_named(
    make_run: MakeRun, file: str, content: str | None, error: type[Exception]
) -> None:
    run = make_run()
    path = run / file
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(error, match=re.escape(str(path))):
        write_report(run)
    assert not (run / "report.html").exists()


def test_a_report_in_the_folder_of_another_site_is_refused(make_run: MakeRun) -> None:
    run = make_run()
    (run / "sites" / "site-00").rename(run / "sites" / "elsewhere")
    with pytest.raises(ConfigError, match="elsewhere"):
        write_report(run)


def test_a_finished_private_run_without_reports_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(RunError, match=r"budget\.json"):
        write_report(make_run(sites=0))


@given(st.floats(1e-12, 1e6))
def test_shown_bounds_are_never_below_the_bound_and_are_close(value: float) -> None:
    exact = Decimal(repr(value))
    for shown in (Decimal(upper(value)), Decimal(small(value))):
        assert exact <= shown <= exact * Decimal("1.101") + Decimal("0.001")


@given(st.floats(0, 1e6))
def test_what_is_left_is_never_shown_as_more(value: float) -> None:
    shown = Decimal(lower(value))
    assert shown <= Decimal(repr(value)) < shown + Decimal("0.001")


@given(st.sets(st.integers(1, 60)))
def test_ranges_name_every_number_and_no_other(numbers: set[int]) -> None:
    named: set[int] = set()
    for part in filter(None, ranges(numbers, at_most=60).split(", ")):
        first, _, last = part.partition("–")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers


@given(st.lists(st.floats(0, 200), max_size=13))
def test_labels_never_overlap_and_keep_their_order(wanted: list[float]) -> None:
    placed = spread(wanted, LABEL_HEIGHT, 200)
    in_order = [placed[i] for i in sorted(range(len(wanted)), key=lambda i: wanted[i])]
    gaps = [b - a for a, b in pairwise(in_order)]
    assert all(gap >= LABEL_HEIGHT - 1e-6 for gap in gaps)
    assert all(-1e-6 <= place <= 200 + 1e-6 for place in placed)


@given(st.lists(st.integers(), min_size=1, max_size=2000), st.integers(1, 300))
def test_thinning_keeps_the_ends(points: list[int], at_most: int) -> None:
    kept = thin(points, at_most)
    assert len(kept) <= at_most + 1
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_importing_the_package_loads_no_plotting() -> None:
    code = "import sys, fedpriv.report; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def an_audit(proved: float) -> Audit:
    measure = Measure(name=f"AUC {HOSTILE}", value=0.75, low=0.7, high=0.8, by_chance=0.5)
    worlds = [
        {"name": "as-claimed", "private": True, "epsilon": 2.0, "wanted": False},
        {"name": "no-noise", "private": False, "epsilon": None, "wanted": True},
    ]
    part = {
        "name": "membership",
        "epsilon": 2.0,
        "delta": 1e-5,
        "confidence": 0.95,
        "settings": {},
        "worlds": [
            {**world, "epsilon_lower": proved, "found": True, "trials": {}, "measures": [measure]}
            for world in worlds
        ],
        "seconds": 1.0,
    }
    return Audit.model_validate(
        {
            "command": "fedpriv audit --run trial",
            "started": "2026-01-01T00:00:00Z",
            "seconds": 1.0,
            "versions": {},
            "job": "trial",
            "job_id": None,
            "method": "dp-lora",
            "base_digest": "sha256:0",
            "config_digest": "sha256:0",
            "data_is_public": True,
            "not_private": True,
            "charged": {},
            "seeds": {},
            "parts": [part],
            "refused": [{"what": "exposure", "why": "A classifier tells no text."}],
        }
    )


@pytest.mark.parametrize("proved", [1.25, 3.5])
def test_an_audit_beside_the_run_is_shown_with_what_it_says(
    make_run: MakeRun, proved: float
) -> None:
    run = make_run()
    assert "Audit" not in Page(write_report(run)).words
    an_audit(proved).write(run)
    page = Page(write_report(run))
    assert ("CLAIM BROKEN" in page.words) == ("does not hold" in page.words) == (proved > 2)
    assert proved in page.values
    assert "NOT PRIVATE: the twins of this audit" in page.words
    assert "A classifier tells no text." in page.words
    assert "by chance 0.5" in page.words
    assert "script" not in {tag for tag, _ in page.tags}


def test_an_audit_that_was_changed_is_refused_by_key(make_run: MakeRun) -> None:
    run = make_run()
    path = an_audit(1.0).write(run)
    path.write_text(path.read_text().replace('"parts"', '"pieces"'))
    with pytest.raises(ConfigError, match="parts"):
        write_report(run)


@given(st.floats(0, 50), st.floats(0, 50))
def test_a_higher_loss_is_called_worse(before: float, after: float) -> None:
    assert bool(worse(before, after)) is (after > before + TIE)
    assert "not finite" in worse(before, math.nan)
    assert worse(None, after) == worse(before, None) == ""


def test_worse_by_now_is_by_public_records_or_by_a_look_beyond_its_noise() -> None:
    def row(loss: float | None, look: float | None = None, deviation: float = 0.1) -> Any:
        held_out = None if look is None else {"loss": {"mean": look, "deviation": deviation}}
        return {"eval_loss": loss, "held_out": held_out}

    assert worse(2.3450001, 2.3450002) == worse_by_now(2.345, [row(2.3452)]) == ""  # a tie
    assert "its loss is 2.175, and was 0.693" in worse_by_now(0.693, [row(2.175)])
    assert "not finite" in worse_by_now(0.693, [row(math.nan)])
    unseen: Any = {"eval_loss": 0.5, "held_out": {"loss": None}}
    for rows in (
        [row(0.5)],
        [row(None)],
        [row(0.5, 0.4)],
        [row(0.5, 0.4), row(0.5, 0.65)],  # 0.25 is less than twice the noise of both, 0.28
        [row(0.5, 0.4), row(0.5, 0.9), row(0.5)],
        [row(0.5, 0.4), unseen],
        [unseen, row(0.5, 9.0)],
    ):
        assert worse_by_now(0.693, rows) == ""
    said = worse_by_now(0.693, [row(0.5, 0.4), row(None), row(0.5, 0.7)])
    assert "its loss is 0.700 ± 0.100 at the sites, and was 0.400 ± 0.100 at the sites" in said


def test_the_last_loss_is_of_a_round_that_was_evaluated() -> None:
    assert last_loss([{"eval_loss": 3.0}, {"eval_loss": 2.0}, {"eval_loss": None}]) == 2.0
    assert last_loss([]) is None
