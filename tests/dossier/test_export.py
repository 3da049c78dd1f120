"""From which runs a dossier is made, and from which it is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedpriv.dossier.export import export_run
from fedpriv.dossier.facts import FACTS, ledger_file
from fedpriv.dossier.package import read
from fedpriv.errors import ConfigError, LedgerCorruptError, RunError
from fedpriv.files import write_json
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.report.ledger_export import export_ledger
from tests.dossier.made_runs import COORDINATOR, Made, make_run, proposal


def change(made: Made, file: str, **fields: object) -> None:
    path = made.run / file
    write_json(path, {**json.loads(path.read_text()), **fields})


def test_the_same_run_and_key_are_the_same_bytes(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    made.export()
    made.export(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == made.out.read_bytes()
    page = made.out.with_suffix(".html").read_bytes()
    assert page == read(made.out).files["dossier.html"]
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(made.run, elsewhere)
    export_run(elsewhere, tmp_path / "moved.zip", COORDINATOR)
    assert (tmp_path / "moved.zip").read_bytes() == made.out.read_bytes()


def test_a_site_over_the_network_sends_the_rows_itself(tmp_path: Path) -> None:
    made = make_run(tmp_path, engine="network")
    own = {name: tmp_path / f"{name}.db" for name in made.names}
    for name in made.names:
        made.ledger(name).rename(own[name])
    with Ledger.open(own["north"], reading=True) as ledger:
        write_json(tmp_path / "north.json", export_ledger(ledger))
    made.export(ledgers={"north": tmp_path / "north.json", "south": own["south"]})
    files = read(made.out).files
    assert ledger_file("north") in files and ledger_file("south") in files
    assert len([f for f in made.verify() if "as its rows come to" in f.text]) == 2
    made.export(ledgers={"north": tmp_path / "north.json"})
    assert ledger_file("south") not in read(made.out).files
    words = [found for found in made.verify() if "its rows are not in the dossier" in found.text]
    assert [found.site for found in words] == ["south"]
    (tmp_path / "north.json").write_text('{"format": "fedpriv-ledger-2", "rows": []}')
    with pytest.raises(LedgerCorruptError, match=r"north\.json"):
        made.export(ledgers={"north": tmp_path / "north.json"})
    with pytest.raises(ConfigError, match="is of no site"):
        made.export(ledgers={"west": own["north"]})


@pytest.mark.parametrize(
    ("file", "fields", "words"),
    [
        ("run.json", {"status": "running"}, "still running"),
        ("run.json", {"private": False}, "NOT PRIVATE"),
        ("adapter/fedpriv.json", {"kind": "personal"}, "one site's own records"),
        ("adapter/fedpriv.json", {"weights_digest": "sha256:" + "0" * 64}, "is not the file"),
        ("adapter/fedpriv.json", {"proposal": {}}, "proposal"),
    ],
)
def test_what_has_no_claim_to_show_is_refused(
    tmp_path: Path, file: str, fields: dict[str, object], words: str
) -> None:
    made = make_run(tmp_path)
    change(made, file, **fields)
    with pytest.raises((ConfigError, RunError), match=words):
        made.export()
    assert not made.out.exists()


def test_a_run_without_an_adapter_is_refused(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    shutil.rmtree(made.run / "adapter")
    with pytest.raises(ConfigError, match="holds no adapter"):
        made.export()
    with pytest.raises(RunError, match="no such file"):
        export_run(tmp_path / "nowhere", made.out, COORDINATOR)


def test_the_page_does_not_take_the_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is the name that its page gets"):
        make_run(tmp_path).export(tmp_path / "run.html")


def test_an_interrupted_run_is_told(tmp_path: Path) -> None:
    made = make_run(tmp_path, slots=4)
    change(made, "run.json", status="interrupted", finished=None)
    assert any("ended after 4 of 6 rounds" in found.text for found in made.export())
    assert b"Interrupted after 4 of\n6 rounds" in read(made.out).files["dossier.html"]


def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    metrics = made.run / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"eval_loss": 4.9', '"eval_loss": NaN'))
    made.export()
    scores = json.loads(read(made.out).files[FACTS])["evaluation"]["scores"]
    assert [score["round"] for score in scores] == [0, 1, 2, 3, 4, 5, 6]
    assert scores[-1]["loss"] is None


def test_names_and_settings_are_shown_as_text(tmp_path: Path) -> None:
    made = make_run(tmp_path, asked=proposal(method="<script>alert(1)</script>"))
    made.export()
    page = read(made.out).files["dossier.html"]
    assert b"<script>" not in page and b"&lt;script&gt;" in page
