"""A site's entry for a roster: its name, and the key that signs its reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedpriv.config.load import load_site
from fedpriv.errors import LedgerError
from fedpriv.pki.points import in_groups
from fedpriv.pki.signing import load_or_create_key
from fedpriv.secure_sum.roster import read_entry
from fedpriv_client.roster_entry import write_entry
from fedpriv_client.site_settings import SIGNING_KEY

FILE = """
[site]
name = "cardiology"
[server]
address = "fed.example.org:8443"
ca = "ca.crt"
key = "site.key"
[data]
path = "notes.jsonl"
size = 250
columns = { text = "text" }
[budget]
epsilon = 10.0
delta = 1e-5
per_job = 4.0
[allow]
methods = ["dp-lora"]
model = "model"
model_digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(FILE)
    return path


def test_the_entry_is_of_the_key_that_signs_the_reports(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "cardiology.roster.json"
    said = write_entry(load_site(config), out)
    key = load_or_create_key(tmp_path / "state" / SIGNING_KEY)
    entry = read_entry(out)
    assert entry.name == "cardiology"
    assert entry.public_key == key.public_key().public_bytes_raw().hex()
    assert str(out) in said and in_groups(entry.public_key) in said
    assert set(json.loads(out.read_text())) == {"name", "public_key"}
    before = out.read_bytes()
    write_entry(load_site(config), out)
    assert out.read_bytes() == before, "another time, the same key"


def test_a_key_that_others_may_read_is_not_named_to_anybody(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "cardiology.roster.json"
    load_or_create_key(tmp_path / "state" / SIGNING_KEY)
    (tmp_path / "state" / SIGNING_KEY).chmod(0o644)
    with pytest.raises(LedgerError, match="may be read or changed"):
        write_entry(load_site(config), out)
    assert not out.exists()


def test_the_command_needs_no_torch(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "cardiology.roster.json"
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from fedpriv_client.cli import app\n"
        f"app(['roster-entry', '--config', {str(config)!r}, '--out', {str(out)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert in_groups(read_entry(out).public_key) in done.stdout
