"""The card: what hubs read of it, what it says of privacy, and that nobody's text becomes more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from fedpriv.hub.export import Wanted, export
from fedpriv.report import budget
from tests.hub.hub_runs import MakeRun, report

HOSTILE = "<script>alert(1)</script> | [x](http://evil.example) `code` **bold**\n\n# Heading\n---\n"
ALONE = {
    "epsilon_alone_spent": 4.25,
    "epsilon_alone_allocated": 21.5,
    "epsilon_alone_committed": 21.5,
    "budget_alone": 30.0,
    "max_colluding": 1,
    "trust_model": budget.trust_model(1),
}


def card(folder: Path) -> ModelCard:
    """As the hub's own library reads it."""
    return ModelCard.load(folder / "README.md")


def words(folder: Path) -> str:
    return " ".join(card(folder).text.split())


def test_hubs_find_base_library_licence_tags_and_scores(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run()
    wanted = {"base": "example/base-model", "license": "apache-2.0"}
    for merge, library, relation in (
        (False, "peft", "adapter"),
        (True, "transformers", "finetune"),
    ):
        export(run, tmp_path / library, Wanted(merge=merge, **wanted))  # type: ignore[arg-type]
        found = card(tmp_path / library).data
        assert found.base_model == "example/base-model"
        assert found.get("base_model_relation") == relation
        assert found.library_name == library
        assert found.license == "apache-2.0"
        assert found.pipeline_tag == "text-generation"
        assert {"fedpriv", "differential-privacy", "lora"} <= set(found.tags)
        assert "not-private" not in found.tags
        scores = {r.metric_type: r.metric_value for r in found.eval_results}
        assert scores == {"loss": 3.25, "accuracy": 0.5}
    assert "| Held-out loss | 3.500 | 3.250 |" in card(tmp_path / "peft").text


def test_what_nobody_stated_is_not_made_up(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run(baseline=None)
    (run / "metrics.jsonl").write_text("")
    export(run, tmp_path / "a", Wanted())
    found = card(tmp_path / "a").data
    assert found.base_model is None and found.license is None and found.eval_results is None
    assert "stated none" in words(tmp_path / "a")
    assert "It was not evaluated." in words(tmp_path / "a")


def test_the_data_behind_the_embedded_model_are_named_as_their_licence_asks(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run, _ = make_run(name="embedded")
    for merge in (False, True):
        export(run, tmp_path / f"out-{merge}", Wanted(merge=merge))
        assert "MedQuAD" in words(tmp_path / f"out-{merge}")
        assert "CC BY 4.0" in words(tmp_path / f"out-{merge}")


def test_every_site_is_listed_with_its_claim_rounded_up(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run(reports=(report("north"), report("south", unit="patient_nbr", delta=2e-6)))
    export(run, tmp_path / "a", Wanted())
    said = words(tmp_path / "a")
    assert "| north | **3.001** of 4.000 | 2.001 | 1e-5 | record |" in said
    assert r"| south | **3.001** of 4.000 | 2.001 | 2e-6 | patient\_nbr |" in said
    assert "A unit is one record (north)" in said
    assert "everything under one value of `patient_nbr` (south)" in said
    assert "Σε = 6.001, Σδ = 1.2e-5" in said
    for part in ("one unit added or removed", "upper bound", "not covered: replies leave"):
        assert part in said
    assert "The ledger was not rolled back." in said
    assert "Two data sets" in said and "what the base model was trained on before" in said
    assert "may collude" not in said


def test_both_claims_are_stated_where_there_is_a_secure_sum(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run, _ = make_run(reports=(report("north"), report("south", **ALONE)))
    export(run, tmp_path / "a", Wanted())
    said = words(tmp_path / "a")
    assert "| south | 1 | 3.001 | **21.500** | 30.000 |" in said
    assert "of the other sites as many as stated" in said
    assert "at most 1 of them work with the server" in said
    assert "Σε = 24.501" in said  # of the figure alone


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ({"private": False}, "seeded or paired, so that nothing below"),
        ({"reports": (report("north"), report("south", private=False))}, "at south"),
    ],
)
def test_a_run_that_is_not_private_is_stamped_first_and_for_machines(
    make_run: MakeRun, tmp_path: Path, options: dict[str, Any], who: str
) -> None:
    run, _ = make_run(**options)
    for merge in (False, True):
        folder = tmp_path / f"out-{merge}"
        assert not export(run, folder, Wanted(merge=merge)).private
        assert "not-private" in card(folder).data.tags
        assert card(folder).text.strip().startswith("# trial\n\n> **NOT PRIVATE.**")
        assert who in words(folder)


def test_a_simulation_and_a_site_that_did_not_report_are_told(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run, _ = make_run(reports=(report("south", simulated=True),))
    export(run, tmp_path / "a", Wanted())
    said = words(tmp_path / "a")
    assert "It was a simulation" in said
    assert "**No report from north**: nothing is claimed for its records." in said


def test_a_report_that_was_signed_before_the_job_went_on_is_told(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run, _ = make_run()
    path = run / "metrics.jsonl"
    more = {"status": "ok", "epsilon_spent": 2.5}  # than the 2.0004 that north signed
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "sites": {"north": more}}) + "\n" for row in rows))
    export(run, tmp_path / "a", Wanted())
    assert "**Older than the job:** the report of north," in words(tmp_path / "a")


def test_without_any_report_nothing_is_claimed(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run(reports=())
    export(run, tmp_path / "a", Wanted())
    said = words(tmp_path / "a")
    assert "nothing is claimed here" in said
    assert "What it says" not in said and "ε for life" not in said


def test_text_of_others_stays_text(make_run: MakeRun, tmp_path: Path) -> None:
    hostile = report("north", unit=HOSTILE, accountant=HOSTILE, assumptions=(HOSTILE,))
    run, _ = make_run(reports=(hostile,), versions={"fedpriv": HOSTILE})
    export(run, tmp_path / "a", Wanted(license="other"))
    export_text = card(tmp_path / "a").text
    plain = re.sub(r"`[^`\n]*`", "", re.sub(r"\\.", "", export_text))
    assert "<script" not in plain and "](http" not in plain and "**bold" not in plain
    assert not re.search(r"^ *# Heading", export_text, re.M)
    rows = [line for line in export_text.splitlines() if line.startswith("| north")]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 6
    assert card(tmp_path / "a").data.license == "other"


@pytest.mark.parametrize(("bits", "said"), [("8bit", "8 bits"), ("4bit", "4 bits")])
def test_a_quantised_base_is_named_with_what_it_was_rounded_to(
    make_run: MakeRun, tmp_path: Path, bits: Any, said: str
) -> None:
    run, worker = make_run(quantize=bits)
    for merge in (False, True):
        export(run, tmp_path / f"out-{merge}", Wanted(merge=merge))
        text = words(tmp_path / f"out-{merge}")
        assert f"frozen weights that were rounded to {said} (bitsandbytes, " in text
        assert worker.base.digest in text
        assert ("that it is merged into" in text) == merge
        assert (f"round_weights(base, '{bits}')" in text) != merge


def test_a_base_in_full_is_not_said_to_be_rounded(make_run: MakeRun, tmp_path: Path) -> None:
    run, _ = make_run()
    export(run, tmp_path / "a", Wanted())
    text = words(tmp_path / "a")
    assert not any(said in text for said in ("Quantised", "bitsandbytes", "round_weights"))
