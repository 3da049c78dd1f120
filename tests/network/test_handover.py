"""A finished job's adapter at real sites, and what one of them makes of it, unheard."""

from __future__ import annotations

import json

import pytest

from fedpriv.adapter_facts import read_facts
from fedpriv.base_model import WEIGHTS
from fedpriv.config.load import load_site
from tests.network.network_federation import Federation
from tests.waiting import wait_until


@pytest.mark.nightly
def test_sites_get_the_adapter_and_one_goes_on_with_it_while_its_client_is_stopped(
    federation: Federation,
) -> None:
    federation.only(2, needed=2)
    file = federation.site_file(0)
    federation.change(file, "[personal]", "[personal]\nrates = [3e-3]\nepochs = 2")
    federation.change(file, 'path = "notes.jsonl"', 'path = "notes.jsonl"\nheld_out = 0.3')
    server = federation.server()
    clients = [federation.client(index) for index in range(2)]
    assert server.wait() == 0, server.text
    job = json.loads((federation.out / "run.json").read_text())["job_id"]
    states = [load_site(federation.site_file(index)).site.state_dir for index in range(2)]
    theirs = read_facts(federation.out / "adapter")
    for client, state in zip(clients, states, strict=True):
        wait_until((state / "adapters" / job).exists, lambda client=client: client.text)
        ours = read_facts(state / "adapters" / job)
        assert (ours.kind, ours.job) == ("federated", job)
        assert ours.proposal.digest() == theirs.proposal.digest()
        name = WEIGHTS
        assert (state / "adapters" / job / name).read_bytes() == (
            federation.out / "adapter" / name
        ).read_bytes()
    assert "did not get the adapter" not in server.text

    reports = [path.read_bytes() for path in states[0].rglob("budget.json")]
    beside = federation.run("fedpriv-client", "personalise", "--config", str(file), name="beside")
    assert beside.wait() == 6 and "the client is running" in beside.text
    clients[0].kill()
    made = federation.run("fedpriv-client", "personalise", "--config", str(file), name="own")
    assert made.wait() == 0, made.text
    folder = states[0] / "site-model" / job
    assert f"The site model is in {folder}" in made.text
    seen = federation.run("fedpriv-client", "evaluate", "--config", str(file), name="seen")
    assert seen.wait() == 0, seen.text
    assert (states[0] / "evaluation.html").exists()
    assert [path.read_bytes() for path in states[0].rglob("budget.json")] == reports
    status = json.loads(federation.ask(0, "status", "--json").stdout)
    found = [clients[0].text, server.text, json.dumps(status)]
    found += [
        path.read_text(errors="replace") for path in federation.out.rglob("*") if path.is_file()
    ]
    digest = read_facts(folder / "personal").weights_digest
    for one in found:
        assert "personalise" not in one
        assert str(folder) not in one
        assert digest not in one
    federation.stop()


@pytest.mark.nightly
def test_a_site_that_is_not_there_at_the_end_is_waited_for_or_can_be_sent_the_folder(
    federation: Federation,
) -> None:
    federation.only(2, needed=1)
    server = federation.server()
    clients = [federation.client(0, "held"), federation.client(1)]
    federation.until_paid(1, 2)
    clients[1].kill()
    federation.let_go(0)
    assert server.wait() == 0, server.text
    assert "site-1 did not get the adapter: send them the folder" in server.text
    report = federation.out / "sites" / "site-1" / "budget.json"
    assert not report.exists()
    again = federation.server()
    wait_until(lambda: "Waiting for site-1" in again.text, lambda: again.text)
    back = federation.client(1)
    assert again.wait() == 0
    assert str(federation.out / "adapter") in again.text
    state = load_site(federation.site_file(1)).site.state_dir
    wait_until(lambda: any((state / "adapters").glob("test-*")), lambda: back.text)
    assert report.exists()
    back.kill()
    assert federation.server().wait() == 0  # nothing is owed any more
    file = federation.site_file(1)
    federation.change(file, "[personal]", "[personal]\nrates = [3e-3]\nepochs = 1")
    clients[0].kill()
    arguments = ["--config", str(file), "--adapter"]
    made = federation.run(
        "fedpriv-client", "personalise", *arguments, str(federation.out / "adapter"), name="own"
    )
    assert made.wait() == 0, made.text
