"""Files of version 0.1.0 are read: federation file, ledger, run, dossier and a site's file.

`ledger init`, `simulate`, `export` and `provision` of that version made what is in
`earlier_version/0.1.0.tar.xz`, with two sites of 24 made-up notes.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from fedpriv.config.load import load_site
from tests.forked_commands import command

KEPT = Path(__file__).with_name("earlier_version") / "0.1.0.tar.xz"
SIGNER = "0cae735edad469675395fa4cf8c885ec45349b18603b3e0f8dd7567b388e56ee"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(KEPT) as archive:
        # Python has the filter from 3.11.4 on.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(tmp_path)
    return tmp_path


def shown(folder: Path, *words: str) -> str:
    done = command("fedpriv", *words, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.mark.slow
def test_its_ledger_is_whole_and_goes_on_with_its_federation_file(folder: Path) -> None:
    assert "has seen row" in shown(
        folder, "ledger", "verify", "north.db", "--witness", "north.witness"
    )
    before = json.loads(shown(folder, "ledger", "show", "north.db", "--json"))
    shown(folder, "simulate", "federation.toml", "--out", "again")
    after = json.loads(shown(folder, "ledger", "show", "north.db", "--json"))
    assert before["epsilon_committed"] == after["epsilon_committed"] == 20
    assert after["used"][0] == pytest.approx(2 * before["used"][0])  # the same job once more


@pytest.mark.slow
def test_its_run_and_its_dossier_are_verified(folder: Path) -> None:
    report = folder / "run" / "report.html"
    shown(folder, "report", "run")
    assert "earlier" in report.read_text()
    assert "VERIFIED" in shown(folder, "verify", "dossier.json", "--signer", SIGNER)


def test_its_site_file_is_read(folder: Path) -> None:
    path = folder / "site.toml"
    text = path.read_text().replace("#! ", "").replace("size = 1000", "size = 24")
    path.write_text(text.replace("sha256:...", "sha256:" + "a" * 64))
    for name in ("notes.jsonl", "ca.crt", "site.key"):
        (folder / name).touch(mode=0o600)
    file = load_site(path)
    assert (file.budget.epsilon, file.budget.per_job, file.allow.min_noise) == (10, 3, 0.3)
