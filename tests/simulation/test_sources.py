"""Sites that keep their notes in different ways take part in one job."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError
from fedpriv_comparison.records import pooled
from fedpriv_simulation.simulate import simulate
from tests.data.omop_notes import note, sqlite

Make = Callable[..., Any]
TABLES = """
[[sites]]
name = "omop"
size = 12
transform = "scrubbing_of_sites:upper"
[sites.omop]
url = "sqlite:///cdm.db"
[[sites]]
name = "fhir"
size = 12
[sites.fhir]
path = "export.ndjson"
[[sites]]
name = "file"
size = 12
data = "notes.jsonl"
"""


@pytest.fixture
def file(federation: Make, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A federation of three sites, each with twelve patients of two notes."""
    path: Path = federation(rounds=2, sites=0, extra="", public=False)
    folder = path.parent
    notes = [note(i, i // 2, f"note {i} of omop") for i in range(24)]
    sqlite(folder / "cdm.db", notes)
    documents = [
        {
            "resourceType": "DocumentReference",
            "status": "current",
            "subject": {"reference": f"Patient/{i // 2}"},
            "content": [
                {
                    "attachment": {
                        "contentType": "text/html",
                        "data": b64encode(f"<p>note {i} of <b>fhir</b>".encode()).decode(),
                    }
                }
            ],
        }
        for i in range(24)
    ]
    rows = [{"person_id": i // 2, "note_text": f"note {i} of a file"} for i in range(24)]
    held = [{"note_text": f"public note {i}"} for i in range(6)]
    files = {"export.ndjson": documents, "notes.jsonl": rows, "held-out.jsonl": held}
    for name, lines in files.items():
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.syspath_prepend(folder)
    (folder / "scrubbing_of_sites.py").write_text("def upper(text): return text.upper()")
    text = path.read_text().replace('text = "note"', 'text = "note_text"')
    text = text.replace("epsilon = 6.0", 'epsilon = 6.0\nunit = "person_id"')
    path.write_text(text.replace("min_sites = 0", "min_sites = 3") + TABLES)
    return path


def test_they_train_together_by_person(file: Path, tmp_path: Path) -> None:
    outcome = simulate(load_job(file), tmp_path / "run", source=file)
    assert len(outcome.budgets) == 3
    said = "".join(p.read_text("utf-8", "ignore") for p in (tmp_path / "run").rglob("*.json*"))
    assert "of omop" not in said and "NOTE 1" not in said
    assert not list((tmp_path / "run").rglob("*.arrow"))  # no clear text is left


def test_one_party_with_all_notes_has_them_as_the_sites_do(file: Path, tmp_path: Path) -> None:
    config = pooled(load_job(file, ["job.data_is_public=true"]), tmp_path)
    [site] = config.sites
    assert isinstance(site.data, Path) and site.transform is None
    rows = [json.loads(line) for line in site.data.read_text().splitlines()]
    texts = {row["note_text"] for row in rows}
    assert {"NOTE 3 OF OMOP", "note 3 of fhir", "note 3 of a file"} <= texts
    assert {row["person_id"] for row in rows} == {str(i) for i in range(12)}


def test_public_records_are_none_of_theirs(file: Path, tmp_path: Path) -> None:
    held = {"note 3 of omop": "omop", "NOTE 3 OF OMOP": "omop", "note 3 of fhir": "fhir"}
    for text, owner in held.items():
        (file.parent / "held-out.jsonl").write_text(json.dumps({"note_text": text}))
        with pytest.raises(ConfigError, match=f"1 of 1 records that are also those of {owner};"):
            simulate(load_job(file), tmp_path / "run", source=file)
    with pytest.raises(ConfigError, match=r"is also sites.fhir.fhir"):
        load_job(file, ["evaluation.data='export.ndjson'"])
    with pytest.raises(ConfigError, match=r"is also sites.omop.omop"):
        load_job(file, ["evaluation.data='cdm.db'"])


def test_what_is_wrong_names_the_site(file: Path, tmp_path: Path) -> None:
    for override, key in (
        ("sites.omop.omop.table='nota'", "sites.omop.omop.table"),
        ("sites.fhir.fhir.path='none.ndjson'", "sites.fhir.fhir"),
        ("sites.file.transform='scrubbing_of_sites:none'", "sites.file.transform"),
    ):
        with pytest.raises(ConfigError) as caught:
            simulate(load_job(file, [override]), tmp_path / "run", source=file)
        assert caught.value.key == key
    with pytest.raises(ConfigError, match=r"sites.a.data: is missing; name a file .*\(omop\)"):
        load_job(file, ["sites=[{name='a', size=12}]", "job.min_sites=1"])
    with pytest.raises(ConfigError, match=r"sites.file.omop: the records are in data, too"):
        load_job(file, ["sites.file.omop.url='sqlite:///cdm.db'"])
    network = ["job.engine=network", "server.address='h:1'", "job.min_sites=1"]
    for key, value in (("transform", "'a:b'"), ("fhir", "{path='a'}")):
        with pytest.raises(ConfigError, match=f"sites.a.{key}: belongs to the site's own file"):
            load_job(file, [*network, f"sites=[{{name='a', {key}={value}}}]"])
