"""What `fedpriv doctor` says of a site, one wrong thing at a time; over the network elsewhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from typer.testing import CliRunner

from fedpriv.base_model import EMBEDDED
from fedpriv.cli import app
from fedpriv.config.load import load_site
from fedpriv.doctor.finding import look
from fedpriv.models.stored import digest_of
from fedpriv.pki.signing import load_or_create_key
from fedpriv.privacy.ledger.ledger import Ledger, Plan
from fedpriv.stored_adapter import find_adapter
from fedpriv_client import doctor
from fedpriv_client.cli import app as client
from fedpriv_client.init import init_site
from fedpriv_client.settings import ledger_path, ledgers
from fedpriv_client.site_settings import SIGNING_KEY, cache_folder
from fedpriv_client.undo_init import undo
from tests.data.omop_notes import sqlite
from tests.peft_adapters import write_peft_adapter
from tests.waiting import wait_until

Found = dict[str, dict[str, Any]]


def examined(file: Path, *options: str) -> tuple[int, Found]:
    answer = CliRunner().invoke(app, ["doctor", str(file), "--json", *options])
    return answer.exit_code, {row["what"]: row for row in json.loads(answer.stdout)}


def tree(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_records_of_a_database_and_what_they_go_through(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(file.parent)
    (file.parent / "scrubbing_of_site.py").write_text(
        "import itertools\nnumbers = itertools.count()\n"
        "def upper(text): return text.upper()\n"
        "def number(text): return f'{text} {next(numbers)}'\n"
        "def broken(text): raise KeyError(text)\n"
    )
    url = sqlite(file.parent / "cdm.db")
    text = file.read_text().replace('path = "notes.jsonl"', f'omop.url = "{url}"')
    text = text.replace('text = "note"', 'text = "note_text"')
    readable = "3 rows, readable; 24 units declared"
    for name, ok, said, records in (
        ("upper", True, "scrubbing_of_site:upper, the same whatever came before", readable),
        ("number", None, "remembers other texts", readable),
        ("broken", False, "fails on a made-up text (KeyError)", "3 of 3 records give no example"),
        ("none", False, "there is no such function", "there is no such function"),
    ):
        file.write_text(
            text.replace("size = 24", f'size = 24\ntransform = "scrubbing_of_site:{name}"')
        )
        _, found = examined(file, "--offline")
        assert found["records"]["ok"] is (ok is not False)
        assert records in found["records"]["found"]
        assert found["transform"]["ok"] is ok
        assert said in found["transform"]["found"]


def test_what_is_left_out_of_long_texts_and_of_people_with_many_is_told(file: Path) -> None:
    rows: list[Any] = [{"note": "1 fever " * most, "pid": n} for n, most in enumerate([9, 9, 9999])]
    rows += [{"note": "again", "pid": pid} for pid in (0, 0, 1, 3)]
    (file.parent / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    text = file.read_text()
    told = examined(file, "--offline")[1]["records"]["found"]
    assert "7 rows, readable" in told and "1 of 7 records are cut at max_length = " in told
    assert "of their unit" not in told
    file.write_text(text.replace("size = 24", 'size = 24\nunit = "pid"'))
    row = examined(file, "--offline")[1]["records"]
    assert row["ok"] is None and "1 of 7 records are cut at max_length = " in row["found"]
    assert "3 come after data.max_records_per_unit = 1 of their unit" in row["found"]


def test_a_site_that_is_ready_and_nothing_is_changed(file: Path) -> None:
    before = tree(file.parent)
    code, found = examined(file, "--offline")
    assert code == 0, found
    order = "site file,packages,device,clock,enrolment,signing key,ledger,disk,records,model,memory"
    assert list(found) == order.split(",")
    assert found["ledger"]["found"] == "ε = 0 spent, 0 allocated of 10 for life"
    assert tree(file.parent) == before


def test_a_witness_that_is_no_longer_named_is_missed_as_the_client_misses_it(file: Path) -> None:
    text = file.read_text()
    file.write_text(re.sub(r"witness = .*", "", text))
    code, found = examined(file, "--offline")
    assert (code, found["ledger"]["ok"]) == (4, False)
    assert "made with a witness, and the site's file names none" in found["ledger"]["found"]


def test_a_declared_size_that_is_far_off_is_doubted(file: Path) -> None:
    slow = 'name = "clinic", preparation = 600.0'  # for a machine with other work
    file.write_text(file.read_text().replace('name = "clinic"', slow))
    rows = file.parent / "notes.jsonl"
    notes = [json.dumps({"note": f"note {number}"}) for number in range(24)]

    def said(lines: list[str]) -> tuple[bool | None, str]:
        rows.write_text("\n".join(lines))
        row = examined(file, "--offline")[1]["records"]
        return row["ok"], row["found"]

    assert said(notes[:2])[0] is None and "far above" in said(notes[:2])[1]
    more = [json.dumps({"note": f"more {number}"}) for number in range(241)]
    assert "far below" in said(more)[1] and "far" not in said(more[:240])[1]
    assert said(notes)[0] is True


def test_a_ledger_that_was_undone_is_told(file: Path) -> None:
    site = load_site(file)
    [name] = ledgers(site)
    undo(site, name)
    init_site(site, file)
    found = examined(file, "--offline")[1]
    assert "one of ε = 10 for life" in found["undone ledgers"]["found"]


def test_records_that_give_nothing_are_counted(file: Path) -> None:
    rows = file.parent / "notes.jsonl"
    for empty, code, ok in ((6, 0, None), (13, 2, False), (24, 2, False)):
        texts = ["" if number < empty else f"note {number}" for number in range(24)]
        rows.write_text("\n".join(json.dumps({"note": text}) for text in texts))
        found_code, found = examined(file, "--offline")
        assert (found_code, found["records"]["ok"]) == (code, ok)
        assert f"{empty} of 24 records give no example" in found["records"]["found"]
    file.write_text(file.read_text().replace("size = 24", "size = 24\nmax_empty = 0.6"))
    rows.write_text("\n".join(json.dumps({"note": text}) for text in [""] * 13 + ["a"] * 11))
    assert examined(file, "--offline")[1]["records"]["ok"] is None


def test_it_tells_how_fast_a_number_format_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.doctor.number_format.time_in_halves", lambda *_: 9)
    text = file.read_text()
    file.write_text(text.replace("[data]", '[compute]\ndtype = "mixed"\n[data]'))
    code, found = examined(file, "--offline")
    assert code == 0, found
    assert found["number format"]["ok"] is None
    assert "9 times as long" in found["number format"]["found"]


def test_it_says_where_models_are_that_are_not_to_leave(file: Path) -> None:
    state = load_site(file).site.state_dir
    made = [state / "site-model" / "job-3", state / "personal" / "job-1", state / "alone" / "job-2"]
    for folder in made:
        folder.mkdir(parents=True)
    code, found = examined(file, "--offline")
    assert code == 0, found
    said = found["own models"]
    assert said["ok"] is True
    assert all(str(folder) in said["found"] for folder in made)
    assert "not to leave this house" in said["found"]


def test_it_tells_of_clear_text_that_a_killed_command_left(file: Path) -> None:
    cache = load_site(file).site.state_dir / "personal-work" / "cache"
    cache.mkdir(parents=True)
    code, found = examined(file, "--offline")
    assert code == 0, found
    assert found["own models"]["ok"] is None
    assert str(cache) in found["own models"]["found"]


@pytest.mark.parametrize(
    ("what", "code", "old", "new", "said"),
    [
        ("records", 2, '"notes.jsonl"', '"none.jsonl"', "none.jsonl"),
        ("records", 2, '{ text = "note" }', '{ text = "word" }', "word"),
        ("ledger", 2, "size = 24", "size = 25", "fixed as 24"),
        ("ledger", 2, "elsewhere/witness", "/proc/version", "can't be written to"),
        ("model", 2, 'model_digest = "', 'model_digest = "sha256:' + "0" * 64 + '" # "', "digest"),
        ("enrolment", 3, "site.key", "none.key", "none.key"),
        ("device", 2, "[data]", '[compute]\n device = "cuda:9"\n[data]', "compute.device"),
    ],
)
def test_what_is_wrong_is_named(
    file: Path, what: str, code: int, old: str, new: str, said: str
) -> None:
    if new == "/proc/version" and os.access(new, os.W_OK):
        pytest.skip("this user may write everywhere")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    exit_code, found = examined(file, "--offline")
    assert exit_code == code, found
    assert found[what]["ok"] is False
    assert said in found[what]["found"]


def test_the_adapter_that_a_job_may_begin_at_is_known_by_the_digest_that_is_printed(
    file: Path,
) -> None:
    adapter = file.parent / "adapter"
    write_peft_adapter(adapter, EMBEDDED, target_modules=["q_proj"])
    printed = CliRunner().invoke(client, ["digest", "--config", str(file)]).stdout
    assert printed == digest_of("embedded") + "\n"
    wrong = "sha256:" + "0" * 64
    for digest, code in ((wrong, 2), (find_adapter(str(adapter)).digest, 0)):
        allowed = f'[allow]\nbegin = "adapter"\nbegin_digest = "{digest}"'
        changed = file.with_name(f"site-{code}.toml")
        changed.write_text(file.read_text().replace("[allow]", allowed))
        exit_code, found = examined(changed, "--offline")
        assert exit_code == code, found
        assert ("allow.begin_digest" in found["model"]["found"]) == (code == 2)
        assert find_adapter(str(adapter)).digest in found["model"]["found"]
        asked = CliRunner().invoke(client, ["digest", "--config", str(changed)]).stdout
        assert asked.split() == [
            printed.strip(),
            find_adapter(str(adapter)).digest,
            "#",
            "begin_digest",
        ]


def test_a_certificate_that_ends_soon_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.config.load import load_job
    from fedpriv_server.provision import ProvisionOptions, provision

    federation = tmp_path / "federation.toml"
    federation.write_text(
        '[job]\nname = "notes"\nrounds = 2\nengine = "network"\n'
        '[server]\naddress = "localhost:9092"\n'
        '[model]\nname = "embedded"\n[data]\ncolumns = { text = "text" }\n'
        '[evaluation]\ndata = "held-out.jsonl"\n[[sites]]\nname = "clinic"\n'
    )
    provision(load_job(federation), ProvisionOptions(), passphrase=lambda: b"")
    file = tmp_path / "pki/enrolments/clinic/site.toml"
    filled = {"path": '"notes.jsonl"', "size": "24", "epsilon": "9.0", "per_job": "3.0"}
    filled["model_digest"] = f'"{digest_of("embedded")}"'
    for key, value in filled.items():
        file.write_text(
            re.sub(rf"^#! {key} = .*", f"{key} = {value}", file.read_text(), flags=re.M)
        )
    site = load_site(file)
    assert look("enrolment", lambda: doctor._enrolment(site)).ok is True
    monkeypatch.setattr(doctor, "SOON", timedelta(days=4000))
    found = look("enrolment", lambda: doctor._enrolment(site))
    assert found.ok is None
    assert "Ask the coordinator" in found.found


def test_a_signing_key_that_others_may_read_is_told(file: Path) -> None:
    state = load_site(file).site.state_dir
    state.mkdir(mode=0o700, exist_ok=True)
    load_or_create_key(state / SIGNING_KEY).public_key()
    assert examined(file, "--offline")[0] == 0
    (state / SIGNING_KEY).chmod(0o644)
    code, found = examined(file, "--offline")
    assert code == 4
    assert "chmod 600" in found["signing key"]["found"]


def test_an_older_copy_of_the_ledger_is_told(file: Path) -> None:
    """By the witness, though nothing is spent by looking."""
    (path,) = ledgers(load_site(file)).values()
    older = path.read_bytes()
    with Ledger.open(path, file.parent / "elsewhere" / "witness") as ledger:
        ledger.commit(Plan("job", "dp-lora", 0.1, 2.0, 1.0, 3, "sha256:" + "0" * 64))
    path.write_bytes(older)
    code, found = examined(file, "--offline")
    assert code == 4
    assert "went back in time" in found["ledger"]["found"]


def test_a_folder_that_fails_is_a_finding_and_the_rest_is_looked_at(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("fedpriv_client.doctor.private_folder", refuse)
    code, found = examined(file, "--offline")
    assert code == 2
    assert "Permission denied" in found["records"]["found"]
    assert found["model"]["ok"] is True


def test_what_is_found_is_shown_as_it_is(file: Path) -> None:
    file.write_text(file.read_text().replace('"notes.jsonl"', '"[/old]/[red]notes.jsonl"'))
    answer = CliRunner().invoke(app, ["doctor", str(file), "--offline"])
    assert answer.exit_code == 2
    shown = Text.from_ansi(answer.stdout).plain.replace("│", " ").split()
    assert "[/old]/[red]notes.jsonl" in "".join(shown)


@pytest.mark.slow
def test_a_doctor_that_is_asked_to_end_leaves_no_records(file: Path) -> None:
    """What one that is killed leaves is in a folder that a site empties when it starts."""
    state = load_site(file).site.state_dir
    rows = "\n".join(json.dumps({"note": "x" * 200}) for _ in range(200_000))
    (file.parent / "notes.jsonl").write_text(rows)
    program = Path(sys.executable).parent / "fedpriv"
    process = subprocess.Popen(
        [str(program), "doctor", str(file), "--offline"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    cached = cache_folder(state)
    wait_until(lambda: list(cached.glob("doctor-*/*")) or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    assert list(cache_folder(state).iterdir()) == []


def test_a_job_is_tried_dry(file: Path) -> None:
    (file.parent / "none.toml").write_text("[job]\n")
    code, found = examined(file, "--offline", "--job", str(file.parent / "none.toml"))
    assert code == 2
    assert found["job"]["ok"] is False
    assert ledger_path(load_site(file), next(iter(ledgers(load_site(file))))).exists()
