"""The dossier of a job over the network: what the coordinator has, and the rows that sites send."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpriv.config.load import load_site
from fedpriv.dossier.export import export_run
from fedpriv.dossier.verify import Given, verify_file
from fedpriv.files import write_json
from fedpriv.pki.signing import load_or_create_key
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.report.ledger_export import export_ledger
from fedpriv_client.settings import ledgers
from tests.network.network_federation import Federation
from tests.waiting import wait_until


@pytest.mark.nightly
def test_sites_check_what_the_coordinator_says_of_them(
    federation: Federation, tmp_path: Path
) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    for index in range(2):
        federation.client(index)
    assert server.wait() == 0, server.text
    job = json.loads((federation.out / "run.json").read_text())["job_id"]
    states = [load_site(federation.site_file(index)).site.state_dir for index in range(2)]
    for state in states:
        wait_until((state / "adapters" / job).exists)
    federation.stop()
    (path,) = ledgers(load_site(federation.site_file(0))).values()
    with Ledger.open(path, reading=True) as ledger:
        write_json(tmp_path / "rows.json", export_ledger(ledger))
    keys = {
        f"site-{index}": load_or_create_key(state / "report.key").public_key()
        for index, state in enumerate(states)
    }
    signer = load_or_create_key(federation.folder / "pki" / "dossier.key")
    out = tmp_path / "run.zip"
    export_run(federation.out, out, signer, {"site-0": tmp_path / "rows.json"})
    given = Given(
        signer=signer.public_key().public_bytes_raw().hex(),
        sites={name: key.public_bytes_raw().hex() for name, key in keys.items()},
        adapter=states[0] / "adapters" / job,
    )
    found = list(verify_file(out, given))
    held = {(one.site, one.text.split(":")[0]) for one in found if one.kind == "holds"}
    assert ("site-0", "our accountant comes to the same from the events alone") in held
    assert ("site-1", "that is the key that was given for the site") in held
    assert not any("simulated" in one.text for one in found)
    words = [one.site for one in found if "its rows are not in the dossier" in one.text]
    assert words == ["site-1"]
