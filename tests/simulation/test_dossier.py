"""The dossier of a run that really was: exported, carried away, and checked by both accountants."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.dossier.export import export_run
from fedpriv.dossier.facts import ANSWERS, FACTS
from fedpriv.dossier.findings import Finding
from fedpriv.dossier.package import read
from fedpriv.dossier.verify import Given, verify_file
from fedpriv.errors import RunError
from fedpriv.pki.signing import load_or_create_key
from fedpriv.software import software
from fedpriv_simulation.simulate import simulate

Make = Callable[..., Any]
slow = pytest.mark.slow
SECURE = ("privacy.trust=secure-sum", "privacy.max_colluding=1")


def checked(
    federation: Make, tmp_path: Path, *overrides: str, public: bool = True
) -> list[Finding]:
    """Run, export, take file and adapter elsewhere, forget the run, and verify."""
    file, run, away = federation(public=public), tmp_path / "run", tmp_path / "away"
    simulate(load_job(file, overrides), run, source=file)
    away.mkdir()
    export_run(run, away / "run.zip", load_or_create_key(tmp_path / "dossier.key"))
    shutil.copytree(run / "adapter", away / "adapter")
    shutil.rmtree(run)
    return list(verify_file(away / "run.zip", Given(adapter=away / "adapter")))


@pytest.mark.parametrize("public", [False, True])
def test_a_run_is_verified_where_it_never_was(
    federation: Make, tmp_path: Path, public: bool
) -> None:
    found = checked(federation, tmp_path, public=public)
    held = [finding.text for finding in found if finding.kind == "holds"]
    for beginning in (
        "the ledger committed to this very proposal",
        "our accountant comes to the same",
        "dp-accounting agrees: spent",
    ):
        assert sum(text.startswith(beginning) for text in held) == 2
    facts = json.loads(read(tmp_path / "away" / "run.zip").files[FACTS])
    assert facts["software"]["torch"] == software()["torch"].model_dump()
    assert [site["rounds"] for site in facts["sites"]] == [3, 3]
    assert ("T" in facts["finished"]) is public


@slow
def test_both_claims_of_a_secure_sum_are_verified(federation: Make, tmp_path: Path) -> None:
    found = checked(federation, tmp_path, *SECURE)
    agrees = [one.text for one in found if one.text.startswith("dp-accounting agrees")]
    assert sum("alone committed" in text for text in agrees) == 2
    claims = json.loads(read(tmp_path / "away" / "run.zip").files[ANSWERS])["claims"]
    assert [claim["name"] for claim in claims] == ["secure sum", "alone"]


@slow
def test_looks_are_in_it_with_their_price(federation: Make, tmp_path: Path) -> None:
    held_out = [f"sites.site-{index}.held_out=0.4" for index in range(2)]
    looks = ("evaluation.sites.looks=1", "evaluation.sites.slots=2")
    checked(federation, tmp_path, *looks, *held_out)
    evaluation = json.loads(read(tmp_path / "away" / "run.zip").files[FACTS])["evaluation"]
    assert evaluation["steps"] == 2 and len(evaluation["looks"]) == 1
    assert all(price["without"] < price["epsilon"] for price in evaluation["prices"])


@slow
def test_a_run_with_a_seed_has_no_dossier(federation: Make, tmp_path: Path) -> None:
    file, run = federation(), tmp_path / "run"
    simulate(load_job(file), run, source=file, insecure_seed=1)
    with pytest.raises(RunError, match="NOT PRIVATE"):
        export_run(run, tmp_path / "run.zip", load_or_create_key(tmp_path / "dossier.key"))
