"""What `fedpriv doctor` says of a coordinator's machine, one wrong thing at a time."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config.load import load_job
from fedpriv.doctor.studies import DENOISING
from fedpriv.errors import ConfigError, EnrolmentError
from fedpriv.pki.keys import load_key, write_key
from fedpriv.secure_sum.roster import write
from fedpriv_server.broker import MessageBroker
from fedpriv_server.cli import app as server_app
from fedpriv_server.door import Door
from fedpriv_server.provision import ProvisionOptions, provision
from fedpriv_server.serve import serve
from fedpriv_server.site_keys import SiteKeys
from tests.secure_sum.secure_sites import roster_of, sites

Found = dict[str, dict[str, Any]]
Make = Callable[..., Any]


@pytest.fixture
def file(federation: Make) -> Path:
    """A federation file for the network, provisioned."""
    path: Path = federation()
    text = path.read_text().replace("[job]\n", '[job]\nengine = "network"\n')
    text = "\n".join(
        line for line in text.splitlines() if not line.startswith(('data = "site', "size"))
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path.write_text(text + f'\n[server]\naddress = "localhost:{port}"\n')
    order(path)
    return path


def order(file: Path, now: datetime | None = None, **options: Any) -> None:
    provision(load_job(file), ProvisionOptions(**options), passphrase=lambda: b"", now=now)


def examined(file: Path) -> tuple[int, Found]:
    answer = CliRunner().invoke(app, ["doctor", str(file), "--json"])
    return answer.exit_code, {row["what"]: row for row in json.loads(answer.stdout)}


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_federation_that_is_ready(file: Path) -> None:
    code, found = examined(file)
    assert code == 0, found
    order = "federation,packages,device,clock,certificate,ca.key,sites,port,memory,model,privacy"
    assert list(found) == [*order.split(","), "evaluation", "disk"]
    assert all(row["ok"] for what, row in found.items() if what not in ("clock", "ca.key")), found
    assert found["ca.key"]["ok"] is None and "unencrypted" in found["ca.key"]["found"]
    key = file.parent / "pki" / "ca.key"
    write_key(key, load_key(key), passphrase=b"horse", replace=True)
    assert examined(file)[1]["ca.key"]["ok"] is True
    assert found["sites"]["found"] == "site-0: active, site-1: active"
    assert "24 examples" in found["evaluation"]["found"]


def test_a_simulation_needs_no_network_and_makes_a_step(federation: Make) -> None:
    code, found = examined(federation())
    assert code == 0
    assert "certificate" not in found
    assert "records of 32 tokens at once" in found["step"]["found"]


def test_texts_that_are_cut_are_told_of_some_sites(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv_server.doctor.SHOWN", 1)
    path = federation()
    assert examined(path)[1]["records"]["ok"] is True
    change(path, "max_length = 32", "max_length = 3")
    records = examined(path)[1]["records"]
    cut = "site-0: 24 of 24 records are cut at max_length = 3 or max_records_per_unit"
    told = f"48 at 2 sites, readable. {cut}: what is left out contributes nothing."
    assert records["ok"] is None
    assert records["found"] == f"{told} Further sites like that: 1"


def test_it_says_what_studies_found_of_a_method(federation: Make) -> None:
    """It is no fault, and beside plain dp-lora nothing is said."""
    path: Path = federation()
    assert "method" not in examined(path)[1]
    path.write_text(path.read_text() + '\n[denoise]\nwhere = "server"\n')
    code, found = examined(path)
    assert (code, found["method"]["ok"], found["method"]["found"]) == (0, None, DENOISING)


def test_it_tells_how_fast_a_number_format_is(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.doctor.number_format.time_in_halves", lambda *_: 9)
    path = federation()
    change(path, "[data]", '[compute]\ndtype = "mixed"\n[data]')
    code, found = examined(path)
    assert code == 0, found
    assert found["number format"]["ok"] is None
    assert "9 times as long" in found["number format"]["found"]


@pytest.mark.parametrize(
    ("what", "code", "old", "new", "said"),
    [
        ("certificate", 3, 'address = "localhost', 'address = "127.0.0.1', "and sites dial 127."),
        ("sites", 3, 'name = "site-1"', 'name = "site-9"', "site-9: not provisioned"),
        ("evaluation", 2, "held-out.jsonl", "none.jsonl", "none.jsonl"),
        ("evaluation", 2, 'text = "note"', 'text = "words"', "words"),
        ("device", 2, "[data]", '[compute]\ndevice = "cuda:9"\n[data]', "compute.device"),
        ("model", 2, "r = 2", 'r = 2\ntarget_modules = ["nothing"]', "nothing"),
    ],
)
def test_what_is_wrong_is_named(
    file: Path, what: str, code: int, old: str, new: str, said: str
) -> None:
    change(file, old, new)
    exit_code, found = examined(file)
    assert exit_code == code
    assert found[what]["ok"] is False
    assert said in found[what]["found"]


def test_a_port_in_use_is_named_and_right_if_the_server_runs(file: Path) -> None:
    """It is told, not wrong; the server itself does not start there."""
    address = load_job(file).server.bound.replace("0.0.0.0", "127.0.0.1")  # type: ignore[union-attr]
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        code, found = examined(file)
    assert code == 0, found
    assert found["port"]["ok"] is None
    assert "in use" in found["port"]["found"] and "ss -ltnp" in found["port"]["found"]
    assert "If the coordinator itself is running, this is fine." in found["port"]["found"]
    change(file, 'address = "', 'listen = "192.0.2.1:8443"\naddress = "')
    code, found = examined(file)
    assert (code, found["port"]["ok"]) == (2, False)
    assert "an address of this machine" in found["port"]["found"]


def test_certificates_and_keys_are_looked_at(file: Path) -> None:
    key = file.parent / "pki" / "server.key"
    key.chmod(0o644)
    assert examined(file)[0] == 3
    key.chmod(0o600)
    order(file, revoke=("site-1",))
    code, found = examined(file)
    assert (code, found["sites"]["ok"]) == (3, False)
    assert "site-1: revoked" in found["sites"]["found"]
    key.unlink()
    assert "Make it: fedpriv provision" in examined(file)[1]["certificate"]["found"]


def test_what_the_doctor_knows_of_certificates_the_server_says_itself(
    file: Path, tmp_path: Path
) -> None:
    pki, out = file.parent / "pki", tmp_path / "run"
    order(file, renew=("server",), now=datetime.now(UTC) - timedelta(days=2000))
    with pytest.raises(EnrolmentError, match=r"server.crt: the certificate expired on .*--renew"):
        serve(load_job(file), out, source=file)
    assert not out.exists() and EnrolmentError.exit_code == 3
    order(file, renew=("server",))
    (pki / "server.key").write_bytes((pki / "enrolments" / "site-0" / "site.key").read_bytes())
    with pytest.raises(EnrolmentError, match="belongs to another private key"):
        serve(load_job(file), out, source=file)


def test_a_port_in_use_is_said_by_key(file: Path, tmp_path: Path) -> None:
    section = load_job(file).server
    assert section is not None
    run, state = tmp_path / "run", tmp_path / "state"
    with socket.create_server(("0.0.0.0", int(section.bound.rpartition(":")[2]))):
        for asked in (
            ["--config", str(file), "--out", str(run)],
            ["serve", str(file), "--state", str(state)],
        ):
            said = CliRunner().invoke(server_app, asked)
            assert isinstance(said.exception, ConfigError)
            assert "server.listen: can't listen there" in str(said.exception)
    assert not run.exists()


def test_why_a_site_can_not_come_is_said(file: Path) -> None:
    order(file, renew=("site-1",), now=datetime.now(UTC) - timedelta(days=2000))
    keys = SiteKeys.read(file.parent / "pki" / "sites.json")
    broker = MessageBroker(file.parent / "link")
    door = Door(broker, keys, {"site-0", "site-1", "site-9"})
    assert door.named("site-0") == "site-0"
    assert door.named("site-1") == (
        "site-1 (its certificate expired: fedpriv provision FILE --renew site-1)"
    )
    assert door.named("site-9") == "site-9 (not provisioned)"
    broker.close()


def test_a_certificate_that_ends_soon_is_no_fault_but_told(file: Path) -> None:
    shutil.rmtree(file.parent / "pki")
    order(file, now=datetime.now(UTC) - timedelta(days=350), days=365)
    code, found = examined(file)
    assert code == 0
    assert found["certificate"]["ok"] is None
    assert "--renew server" in found["certificate"]["found"]
    assert "renew within 30 days: site-0, site-1" in found["sites"]["found"]


def test_an_authority_that_ends_within_a_year_is_told(file: Path) -> None:
    shutil.rmtree(file.parent / "pki")
    order(file, now=datetime.now(UTC) - timedelta(days=3600))
    order(file, renew=("server", "site-0", "site-1"))
    code, found = examined(file)
    assert (code, found["certificate"]["ok"]) == (0, None), found
    assert "The authority ends on" in found["certificate"]["found"]


def test_a_job_is_for_a_sites_doctor(file: Path) -> None:
    answer = CliRunner().invoke(app, ["doctor", str(file), "--job", str(file)])
    assert isinstance(answer.exception, ConfigError)


def test_a_model_that_can_not_be_trained_privately_is_told(file: Path, model_folder: Make) -> None:
    change(
        file,
        f'name = "{model_folder("llama")}"',
        f'name = "{model_folder("deberta")}"\ntask = "classification"\n'
        f"labels = {json.dumps([str(i) for i in range(12)])}",
    )
    change(file, 'text = "note"', 'text = "note", label = "patient"')
    change(file, "alpha = 4", 'alpha = 4\ntarget_modules = ["query_proj"]')
    code, found = examined(file)
    assert code == 2
    assert found["privacy"]["ok"] is False
    assert "position" in found["privacy"]["found"]
    assert found["evaluation"]["ok"] is True


def test_the_roster_of_a_secure_sum_is_looked_at(file: Path) -> None:
    shared = '[privacy]\ntrust = "secure-sum"\nroster = "roster.json"\n'
    change(file, "[privacy]\n", shared)
    code, found = examined(file)
    assert code != 0
    assert "roster.json" in found["roster"]["found"]
    write(file.with_name("roster.json"), other := roster_of(sites("site-0", "site-9")))
    _, found = examined(file)
    assert found["roster"]["ok"] is False
    assert "site-1, site-9" in found["roster"]["found"]
    file.with_name("roster.json").unlink()
    write(file.with_name("roster.json"), roster := roster_of(sites("site-0", "site-1")))
    code, found = examined(file)
    assert (code, found["roster"]["ok"]) == (0, True)
    assert roster.digest in found["roster"]["found"]
    assert other.digest not in found["roster"]["found"]
