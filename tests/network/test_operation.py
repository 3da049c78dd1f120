"""Full disks, signals, restarts, and what the processes say of themselves."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.network.network_federation import ROUNDS, WORDS, Federation
from tests.waiting import CEILING, free_port, wait_until

Totals = tuple[float, float, float, int]
slow = pytest.mark.slow
INTERRUPTED, RUNNING, TOO_FEW, SETTINGS, MONEY, IDENTITY = 130, 6, 5, 2, 4, 3  # exit codes


@slow
def test_a_sites_disk_is_full_when_a_slot_shall_be_paid(
    federation: Federation, expected: Totals
) -> None:
    """Nothing is released unpaid; when there is room again, the job goes on where it was."""
    federation.only(2, needed=2)
    server = federation.server()
    client = federation.client(0, "full-disk")
    federation.client(1)
    assert server.wait() == TOO_FEW
    assert "site-0: refused: ledger (LedgerError)" in server.text
    assert "can't be written" in client.text
    assert "Nothing was released" in client.text
    status = federation.server_status()
    assert (status["running"], status["state"]) == (False, "stopped")
    assert "site-0: refused: ledger (LedgerError)" in status["problem"]
    ended = json.loads((federation.out / "run.json").read_text())["ended"]
    assert ended["why"] == status["problem"] and ended["sites"]["site-1"]["rounds"] == 1
    (federation.folder / "site-0.full-disk.struck").touch()
    federation.finish(federation.server())
    assert federation.totals(0) == federation.totals(1) == expected


@slow
@pytest.mark.parametrize("fault", ["server-full-disk", "server-full-disk-later"])
def test_the_servers_disk_is_full_when_a_round_shall_be_kept(
    federation: Federation, expected: Totals, fault: str
) -> None:
    federation.only(2, needed=2)
    server = federation.server(fault)
    federation.client(0)
    federation.client(1)
    assert server.wait() == SETTINGS
    assert "error: " in server.text
    assert "Round 2 can't be kept" in server.text
    assert "Traceback" not in server.text
    (federation.folder / f"server.{fault}.struck").touch()
    federation.finish(federation.server())
    assert federation.totals(0) == federation.totals(1) == expected


@pytest.fixture
def disk(federation: Federation) -> Iterator[Path]:
    """A disk of 4 MiB for the run directory, where this machine lets a test mount one."""
    federation.out.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(federation.out)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a disk")
    yield federation.out
    federation.stop()
    subprocess.run(["umount", str(federation.out)], check=True)


@pytest.mark.nightly
def test_the_servers_disk_fills_up_and_stays_full(
    federation: Federation, expected: Totals, disk: Path
) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    federation.client(0, "held")
    federation.client(1)
    federation.until_paid(1, 2)
    ballast = disk / "sites"  # nothing in the way of a run
    ballast.mkdir(exist_ok=True)
    with contextlib.suppress(OSError), (ballast / "ballast").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    federation.let_go(0)
    assert server.wait() == SETTINGS, server.text
    assert "No space left on device" in server.text
    assert "Traceback" not in server.text
    (ballast / "ballast").unlink()
    federation.finish(federation.server())
    assert federation.totals(0) == federation.totals(1) == expected
    assert (federation.out / "sites" / "site-0" / "budget.json").exists()


@slow
@pytest.mark.parametrize(
    "ends", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_processes_end_when_asked_and_go_on_when_started(
    federation: Federation, expected: Totals, ends: signal.Signals
) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    federation.client(0, "held")
    other = federation.client(1)
    federation.until_paid(1, 2)
    other.signal(ends)
    assert other.wait() == INTERRUPTED
    server.signal(ends)
    assert server.wait() == INTERRUPTED
    assert json.loads((federation.out / "run.json").read_text())["status"] == "interrupted"
    federation.let_go(0)
    federation.until_paid(0, 2)  # a slot that is asked for is finished
    federation.client(1)
    federation.finish(federation.server())
    assert federation.totals(0) == federation.totals(1) == expected
    again = federation.server()
    assert again.wait() == 0
    assert "the job is finished" in again.text


@slow
def test_one_server_a_run_and_one_a_port(federation: Federation) -> None:
    federation.only(1, needed=1)
    federation.server()
    federation.until(state="waiting")
    file = str(federation.file)
    same_run = federation.run(
        "fedpriv-server", "--config", file, "--out", str(federation.out), name="same-run"
    )
    same_port = federation.run(
        "fedpriv-server", "--config", file, "--out", str(federation.folder / "b"), name="same-port"
    )
    assert same_run.wait() == RUNNING
    assert same_port.wait() == SETTINGS
    assert "server.listen: can't listen there" in same_port.text


def health(port: int) -> Any:
    """What the standard client of grpc.health.v1 hears; None if nobody answers."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=CEILING
            )
        except grpc.RpcError:
            return None
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def probes(federation: Federation) -> tuple[int, int]:
    """What `status --probe` of the server and of the first site ends with; neither says a word."""
    answers = federation.ask_server("status", "--probe"), federation.ask(0, "status", "--probe")
    assert [answer.output for answer in answers] == ["", ""]
    return answers[0].exit_code, answers[1].exit_code


@pytest.mark.nightly
def test_processes_say_how_they_are(federation: Federation, expected: Totals) -> None:
    """To probes, to people and to programs; and no word of a record is in it."""
    federation.only(2, needed=2)
    servers, sites = free_port(), free_port()
    federation.change(federation.file, "[server]\n", f'[server]\nhealth = "127.0.0.1:{servers}"\n')
    federation.change(
        federation.site_file(0), "[site]\n", f'[site]\nhealth = "127.0.0.1:{sites}"\n'
    )
    client = federation.run(
        "fedpriv-client", "--config", str(federation.site_file(0)), "--json-logs", name="site-0"
    )
    federation.until(0, connection="waiting", problem="can't be reached")
    assert health(sites) == "NOT_SERVING"
    assert health(servers) is None
    assert probes(federation) == (1, 1)
    status = json.loads(federation.ask(0, "status", "--json").stdout)
    assert (status["running"], status["connection"]) == (True, "waiting")
    assert "can't be reached" in status["problem"]

    run = ["--config", str(federation.file), "--out", str(federation.out)]
    server = federation.run("fedpriv-server", *run, "--json-logs", name="server")
    federation.until(state="waiting")
    assert health(servers) == "SERVING"
    wait_until(lambda: health(sites) == "SERVING")
    assert probes(federation) == (0, 0)
    federation.until(problem="Waiting for site-1")
    status = federation.server_status()
    assert status["running"] is True
    unasked = {"there": False, "admitted": True, "last": "not asked yet", "ledger": ""}
    assert status["sites"]["site-1"] == unasked
    federation.client(1)
    federation.finish(server)

    assert probes(federation) == (0, 1)
    status = federation.server_status()
    assert (status["running"], status["state"], status["round"]) == (False, "finished", ROUNDS)
    assert {site["last"] for site in status["sites"].values()} == {"ok"}
    for site in status["sites"].values():  # what a lost witness is replaced by
        rows, _, digest = site["ledger"].partition(":")
        assert int(rows) > 2 * ROUNDS and len(digest) == 64
    status = json.loads(federation.ask(0, "status", "--json").stdout)
    _, allocated, spent, _ = expected
    assert status["budget"]["epsilon_spent"] == pytest.approx(spent)
    assert status["budget"]["epsilon_allocated"] == pytest.approx(allocated)
    assert federation.totals(0) == federation.totals(1) == expected

    lines = [json.loads(line) for line in (client.text + server.text).splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    written = [client.text, server.text, federation.commands[-1].text]
    written += [path.read_text() for path in federation.out.glob("*.json*")]
    assert not {word for word in WORDS if any(word in text for text in written)}
    assert "eval" not in client.text


@pytest.mark.nightly
def test_the_doctor_finds_what_is_wrong_one_thing_at_a_time(federation: Federation) -> None:
    federation.server()
    federation.until(state="waiting")

    def rows() -> tuple[int, dict[str, Any]]:
        answer = federation.doctor(0, "--json")
        return answer.exit_code, {row["what"]: row for row in json.loads(answer.stdout)}

    code, found = rows()
    assert code == 0, found
    looked_at = (
        "site file,packages,device,clock,enrolment,server,signing key,"
        "ledger,disk,records,model,memory"
    )
    assert list(found) == looked_at.split(",")
    assert all(row["ok"] for row in found.values() if row["what"] != "clock")

    site = federation.site_file(0)
    enrolment, original = site.parent, site.read_text()

    def wrong(what: str, code: int, said: str) -> None:
        exit_code, found = rows()
        assert exit_code == code
        assert found[what]["ok"] is False
        assert said in found[what]["found"]
        assert next(row["what"] for row in found.values() if row["ok"] is False) == what
        site.write_text(original)

    federation.change(site, f'"localhost:{federation.port}"', '"localhost:1"')
    wrong("enrolment", IDENTITY, "was made for server.address")
    federation.change(site, 'name = "site-0"', 'name = "site-9"')
    wrong("enrolment", IDENTITY, "was made for site.name")
    federation.change(site, 'path = "notes.jsonl"', 'path = "none.jsonl"')
    wrong("records", SETTINGS, "none.jsonl")
    federation.change(site, "size = 24", "size = 25")
    wrong("ledger", SETTINGS, "fixed as 24")
    federation.change(site, "epsilon = 20.0", "epsilon = 21.0")
    wrong("ledger", SETTINGS, "fixed as 20.0")
    federation.change(
        site, 'model_digest = "sha256:', 'model_digest = "sha256:' + "0" * 64 + '" # '
    )
    wrong("model", SETTINGS, "is not the digest of")
    (enrolment / "site.key").rename(enrolment / "key")
    wrong("enrolment", IDENTITY, "site.key")
    (enrolment / "key").rename(enrolment / "site.key")
    (enrolment / "site.key").chmod(0o644)
    wrong("enrolment", IDENTITY, "site.key")
    (enrolment / "site.key").chmod(0o600)
    ca = (enrolment / "ca.crt").read_bytes()
    (enrolment / "ca.crt").write_bytes((enrolment / "site.crt").read_bytes())
    wrong("enrolment", IDENTITY, "ca.crt")
    (enrolment / "ca.crt").write_bytes(ca)

    federation.change(site, "max_steps = 3", "max_steps = 2")
    assert federation.doctor(0).exit_code == 0
    answer = federation.doctor(0, "--job", str(federation.file), "--json")
    assert answer.exit_code == MONEY
    assert "more than this site allows" in answer.stdout.replace("\n", " ")
    site.write_text(original)
    answer = federation.doctor(0, "--job", str(federation.file), "--json")
    assert answer.exit_code == 0
    assert "3 steps at rate 0.3" in answer.stdout
    assert "records of 32 tokens at once took" in answer.stdout
    assert "0.10 GB needed" in answer.stdout  # for tokens and ledger, by the site's own limits

    clock = federation.run("fedpriv", "doctor", str(site), name="doctor", fault="clock-ahead")
    assert clock.wait() == IDENTITY
    assert "ahead of the server's" in " ".join(clock.text.replace("│", " ").split())

    federation.provision("--revoke", "site-0")
    wait_until(lambda: rows()[0] == IDENTITY)
    wrong("server", IDENTITY, "does not know this site's key")
    federation.commands[0].kill()
    wrong("server", IDENTITY, "can't be reached")
