"""Many sites, many rounds, and trouble all the way: is anything lost, paid twice, or growing?

    python benchmarks/soak.py --out soak --json soak.json

    pip install '.[test]' first: it needs another accountant to compare with.

A real `fedpriv-server` and 50 real `fedpriv-client`s run, each a process of its own, over TLS on
loopback, for 500 rounds of a tiny random model. All the while, every few seconds one of them is
killed (a site, or now and then the server) and started again at once, or a site is stopped for a
while as if it hung. One site in five is left alone, so that it grows old. Memory and open files of
the server and of those sites are looked at throughout.

In the end the script says whether these are true, and fails if not. The job is finished, with every
round in its metrics. Every reply that the server used is a released slot of that site's ledger, the
ledgers verify, and no slot was paid that does not exist. The ε that a site has spent is that of as
many steps by prv-accountant, and no less than what it told and signed. No process ended that was
not killed. What the server and the old sites hold does not grow with the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from small_llama import save_small_llama

from fedpriv.environment import set_environment

set_environment()

WORDS = ["fever", "cough", "pain", "chest", "heart", "lungs", "clear", "normal", "denies", "blood"]
UNITS, EPSILON, DELTA = 40, 6.0, 1e-3
HEAVY = [
    "fedpriv.private_training.worker",
    "fedpriv_client.app",
    "fedpriv_client.serve",
    "fedpriv_server.serve",
    "peft",
    "transformers.models.llama.modeling_llama",
]
SERVER = "server"
ALONE = 5  # one site in this many is never killed
SEEN = ("server", "server_files", "sites", "site_files")
ALLOWED = 1.1  # growth from the second quarter of the rounds to the last


def site_name(number: int) -> str:
    return f"site-{number:02}"


def make_federation(folder: Path, sites: int, rounds: int) -> Path:
    """Make a provisioned federation. A site's records and ledger are beside its enrolment."""
    from fedpriv.config.load import load_job, load_site
    from fedpriv.models.stored import digest_of
    from fedpriv_client.init import init_site
    from fedpriv_server.provision import ProvisionOptions, provision

    draw = random.Random(0)
    folder.mkdir(parents=True)
    model = folder / "model"
    save_small_llama(model, width=16, layers=1, heads=2, tokens=32)
    names = [site_name(number) for number in range(sites)]
    write_notes(folder / "held-out.jsonl", draw)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = folder / "federation.toml"
    file.write_text(
        f'[job]\nname = "soak"\nrounds = {rounds}\nengine = "network"\n'
        f'min_sites = {sites // 2}\nround_timeout = "60s"\n'
        f'[server]\naddress = "localhost:{port}"\nwait = "120s"\n'
        f'[model]\nname = "{model}"\nmax_length = 32\n'
        '[data]\ncolumns = { text = "text" }\n'
        "[lora]\nr = 2\nalpha = 4\n[optimizer]\nlr = 1e-2\n"
        f"[privacy]\nepsilon = {EPSILON}\ndelta = {DELTA}\nsample_rate = 0.2\nclip_norm = 1.0\n"
        "max_records_per_unit = 1\n"
        '[evaluation]\ndata = "held-out.jsonl"\nevery = 50\nlimit = 8\n'
        + "".join(f'[[sites]]\nname = "{name}"\n' for name in names)
    )
    provision(load_job(file), ProvisionOptions(), passphrase=lambda: b"")
    digest = digest_of(str(model))
    for name in names:
        enrolment = folder / "pki" / "enrolments" / name
        write_notes(enrolment / "notes.jsonl", draw)
        own = {
            "path": '"notes.jsonl"',
            "size": str(UNITS),
            "epsilon": f"{2 * EPSILON}",
            "per_job": f"{EPSILON}",
            "model_digest": f'"{digest}"',
            "model": f'"{model}"',
        }
        lines = (enrolment / "site.toml").read_text().splitlines()
        for index, line in enumerate(lines):
            key = line.removeprefix("#!").partition("=")[0].strip()
            if key in own and (line.startswith("#!") or key == "model"):
                lines[index] = f"{key} = {own[key]}"
        lines.insert(lines.index("[allow]") + 1, "max_trainable = 1_000_000")  # held on disk
        (enrolment / "site.toml").write_text("\n".join(lines) + "\n")
        init_site(load_site(enrolment / "site.toml"), enrolment / "site.toml")
    return file


def write_notes(path: Path, draw: random.Random) -> None:
    notes = [{"text": " ".join(draw.choices(WORDS, k=12))} for _ in range(UNITS)]
    path.write_text("".join(json.dumps(note) + "\n" for note in notes))


class Processes:
    """Run the server and its sites. Each is started again after it is killed."""

    def __init__(self, folder: Path, file: Path, sites: int) -> None:
        self._context: Any = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(HEAVY)
        self._folder = folder
        enrolments = folder / "pki" / "enrolments"
        self._commands = {
            SERVER: ["fedpriv-server", "--config", str(file), "--out", str(folder / "run")]
        } | {
            name: ["fedpriv-client", "--config", str(enrolments / name / "site.toml")]
            for name in map(site_name, range(sites))
        }
        self.running: dict[str, Any] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of the sites."""
        return [name for name in self._commands if name != SERVER]

    @property
    def alone(self) -> list[str]:
        """Return the names of the sites that are never killed."""
        return self.names[::ALONE]

    def ended(self) -> list[str]:
        """Return which processes ended without being killed."""
        codes = {name: process.exitcode for name, process in self.running.items()}
        return [
            f"{name} ended with {code}"
            for name, code in codes.items()
            if code not in (None, 0, -signal.SIGKILL)
        ]

    def start(self, name: str) -> None:
        log = self._folder / f"{name}.log"
        process = self._context.Process(target=_run, args=(self._commands[name], log), daemon=True)
        process.start()
        self.running[name] = process

    def renew(self, name: str) -> None:
        """Kill a process, unless it has ended by itself, and start it again."""
        if self.running[name].exitcode is None:
            self.running[name].kill()
            self.running[name].join()
            self.start(name)

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.join()


def _run(arguments: list[str], log: Path) -> None:
    """Run a command in the new process."""
    with log.open("ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
    sys.argv = arguments
    import torch

    torch.set_num_threads(1)
    if arguments[0] == "fedpriv-server":
        from fedpriv_server.cli import main
    else:
        from fedpriv_client.cli import main
    main()


@dataclass
class Trouble:
    """Trouble the processes while they work."""

    processes: Processes
    every: float  # seconds between two troubles
    draw: random.Random
    kills: int = 0
    hangs: int = 0
    restarts: int = 0  # of the server

    def go_on_until(self, done: threading.Event) -> None:
        first = [0.0, 0.5, 1.0]  # first one of each kind, and then by chance
        while not done.wait(self.draw.expovariate(1 / self.every)):
            chance = first.pop(0) if first else self.draw.random()
            if chance < 0.01:
                self.restarts += 1
                self.processes.renew(SERVER)
                continue
            name = self.draw.choice(sorted({*self.processes.names} - {*self.processes.alone}))
            if chance < 0.7:
                self.kills += 1
                self.processes.renew(name)
            else:
                self.hangs += 1
                with contextlib.suppress(ProcessLookupError):
                    pid = self.processes.running[name].pid
                    os.kill(pid, signal.SIGSTOP)
                    done.wait(self.draw.uniform(1, 15))
                    os.kill(pid, signal.SIGCONT)


def looked_at(pid: int) -> tuple[float, int]:
    """Return a process's own bytes, and how many files it has open. Both are 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        own = sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
        return own * 1024.0, len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0.0, 0


def rounds_done(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def soak(folder: Path, sites: int, rounds: int, every: float, seed: int) -> dict[str, Any]:
    """Run the federation with its troubles. Return what was seen on the way."""
    file = make_federation(folder, sites, rounds)
    processes = Processes(folder, file, sites)
    trouble = Trouble(processes, every, random.Random(seed))
    done = threading.Event()
    maker = threading.Thread(target=trouble.go_on_until, args=(done,))
    seen = []
    started = time.monotonic()
    try:
        for name in (SERVER, *processes.names):
            processes.start(name)
        while not rounds_done(folder / "run") and not processes.ended():
            time.sleep(0.2)
        maker.start()
        while not _finished(folder / "run") and not processes.ended():
            mine = [looked_at(processes.running[name].pid) for name in processes.alone]
            memory, files = looked_at(processes.running[SERVER].pid)
            seen.append(
                {
                    "round": rounds_done(folder / "run"),
                    "server": memory,
                    "server_files": files,
                    "sites": sum(one[0] for one in mine),
                    "site_files": max(one[1] for one in mine),
                }
            )
            time.sleep(2)
        seconds = time.monotonic() - started
    finally:
        done.set()
        if maker.ident is not None:
            maker.join()
        processes.running[SERVER].join(60)
        ended = processes.ended()
        processes.stop()
    return {
        "sites": sites,
        "rounds": rounds,
        "seconds": seconds,
        "kills": trouble.kills,
        "hangs": trouble.hangs,
        "server_restarts": trouble.restarts,
        "seen": seen,
        "ended": ended,
    }


def _finished(run: Path) -> bool:
    try:
        return bool(json.loads((run / "run.json").read_text())["status"] == "finished")
    except (OSError, ValueError):
        return False


def check(folder: Path, found: dict[str, Any]) -> list[str]:
    """Return all that is not as it should be."""
    wrong = list(found["ended"])
    run, rounds = folder / "run", found["rounds"]
    lines = (run / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    if [row["round"] for row in metrics] != list(range(1, rounds + 1)):
        wrong.append(f"{len(metrics)} rounds in the metrics, not {rounds}")
    job = json.loads((run / "run.json").read_text())["job_id"]
    found["replies"] = found["slots"] = 0
    for number in range(found["sites"]):
        name = site_name(number)
        states = {row["round"]: row["sites"].get(name, {}).get("status") for row in metrics}
        used = {number - 1 for number, state in states.items() if state == "ok"}
        (path,) = (folder / "pki" / "enrolments" / name / "state" / "ledgers").glob("[0-9a-f]*.db")
        wrong += [
            f"{name}: {fault}" for fault in _faults(path, job, used, rounds, run / "sites" / name)
        ]
        found["replies"] += len(used)
        found["slots"] += _slots(path, job)
    for trouble in ("kills", "hangs", "server_restarts"):
        if not found[trouble]:
            wrong.append(f"there were no {trouble}")
    for key in SEEN:
        early, late = quarters(found, key)
        if not early or not late:
            wrong.append(f"{key} was not seen often enough")
        elif late > ALLOWED * early:
            wrong.append(f"{key} grew from {early:.4g} to {late:.4g}")
    return wrong


def _slots(path: Path, job: str) -> int:
    from fedpriv.privacy.ledger.ledger import Ledger

    with Ledger.open(path, reading=True) as ledger:
        return len(ledger.slots(job))


def _faults(path: Path, job: str, used: set[int], rounds: int, report: Path) -> list[str]:
    """Return what is wrong with a site's ledger and the report that the server has from it.

    Args:
        used: slots whose replies the server has added up.
    """
    from fedpriv.privacy.accounting.opinion import opinion
    from fedpriv.privacy.ledger.ledger import Ledger
    from fedpriv.report import budget, received

    found = []
    with Ledger.open(path, reading=True) as ledger:
        ledger.check_outbox()
        slots, plan = ledger.slots(job), ledger.plan(job)
        spent = ledger.epsilon_spent
    if plan is None:
        return ["never took part"]
    released = {slot for slot, sent in slots if sent}
    if used - released:
        found.append(f"the server used replies that were not released: {sorted(used - released)}")
    if not {slot for slot, _ in slots} <= set(range(rounds)):
        found.append("a slot was paid that there is not")
    heard = opinion((plan.event(len(slots)),), DELTA)
    if not heard.holds(spent):
        found.append(f"ε = {spent} spent; {len(slots)} steps are {heard}")
    for copy in (path.parents[1] / "budget.json", report / "budget.json"):
        if copy.exists():  # a site that was away at the end could not send its last one
            told = budget.read(copy)
            received.verify(told)
            if told.epsilon_spent > spent * (1 + 1e-9):
                found.append(f"{copy} says ε = {told.epsilon_spent}, and {spent} was spent")
    return found


def quarters(found: dict[str, Any], key: str) -> tuple[float, float]:
    """Return medians over the rounds' second and last quarter, or 0 where nothing was seen."""
    rounds = found["rounds"]
    early = [s[key] for s in found["seen"] if rounds / 4 <= s["round"] < rounds / 2 and s[key]]
    late = [s[key] for s in found["seen"] if s["round"] >= 3 * rounds / 4 and s[key]]
    return statistics.median(early or [0.0]), statistics.median(late or [0.0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("soak"), help="a new folder")
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two troubles")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sites, arguments.rounds, arguments.every = 6, 40, 1.0
    found = soak(
        arguments.out.resolve(), arguments.sites, arguments.rounds, arguments.every, arguments.seed
    )
    wrong = check(arguments.out, found)
    table = Table("", "second quarter", "last quarter")
    for key, unit in (("server", 1e6), ("sites", 1e6), ("server_files", 1), ("site_files", 1)):
        early, late = quarters(found, key)
        label = f"{key}, MB" if unit != 1 else key
        table.add_row(label, f"{early / unit:.0f}", f"{late / unit:.0f}")
    console = Console()
    console.print(table)
    console.print(
        f"{found['rounds']} rounds of {found['sites']} sites in {found['seconds'] / 60:.0f} min;"
        f" {found['kills']} sites killed, {found['hangs']} hung, the server killed"
        f" {found['server_restarts']} times; {found['slots']} slots paid,"
        f" {found['replies']} replies used"
    )
    for one in wrong:
        console.print(f"WRONG: {one}", style="red")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
