"""A copy of a provisioned federation, and the processes that a test starts for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedpriv.process import read_status
from fedpriv.report.budget import read
from tests.network.network_processes import Command
from tests.network.network_proxy import Proxy
from tests.waiting import wait_until

ROUNDS, UNITS = 3, 24
WORDS = ("fever", "cough", "pain", "chest", "heart", "lungs", "clear", "normal", "denies", "blood")


class Federation:
    """A copy of the federation, and the processes that were started for it."""

    def __init__(self, folder: Path, context: Any) -> None:
        self.folder, self._context = folder, context
        self.out = folder / "run"
        self.file = folder / "federation.toml"
        self.commands: list[Command] = []
        self.proxies: list[Proxy] = []

    def change(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text, f"{old!r} is not in {path}:\n{text}"
        path.write_text(text.replace(old, new))

    def only(self, sites: int, *, needed: int) -> None:
        """Let the first sites alone take part."""
        for index in range(sites, 3):
            self.change(self.file, f'[[sites]]\nname = "site-{index}"\n', "")
        self.change(self.file, "min_sites = 1", f"min_sites = {needed}")

    @property
    def port(self) -> int:
        """At which the server listens."""
        from fedpriv.config.load import load_job

        section = load_job(self.file).server
        assert section is not None
        return int(section.address.rpartition(":")[2])

    @property
    def authority(self) -> Any:
        from fedpriv_server.authority import Authority

        return Authority(self.folder / "pki", lambda: b"")

    def proxy(self, index: int) -> Proxy:
        """A wire of its own for a site."""
        proxy = Proxy(self.port)
        self.proxies.append(proxy)
        self.move(index, f"localhost:{proxy.port}")
        return proxy

    def move(self, index: int, address: str) -> None:
        """Sign a site's enrolment again, for another address."""
        from fedpriv.pki.document import read_document, write_document
        from fedpriv.pki.enrolment import Manifest
        from fedpriv_server.authority import sign_manifest

        path = self.site_file(index).with_name("enrolment.json")
        manifest = read_document(path, Manifest, fix="")
        moved = manifest.model_copy(update={"address": address})
        write_document(path, sign_manifest(moved, self.authority.key))
        self.change(self.site_file(index), manifest.address, address)

    def site_file(self, index: int) -> Path:
        return self.folder / "pki" / "enrolments" / f"site-{index}" / "site.toml"

    def init(self, index: int) -> None:
        """Make a site's ledger."""
        from fedpriv.config.load import load_site
        from fedpriv_client.init import init_site

        init_site(load_site(self.site_file(index)), self.site_file(index))

    def server(self, fault: str = "", **options: Any) -> Command:
        arguments = ["fedpriv-server", "--config", str(self.file), "--out", str(self.out)]
        return self._start(arguments, "server", fault, **options)

    def lasting(self, fault: str = "") -> Command:
        """Start a server that lasts."""
        serve = ["fedpriv-server", "serve", str(self.file), "--state", str(self.state)]
        return self._start(serve, "server", fault)

    @property
    def state(self) -> Path:
        """The folder of a server that lasts."""
        return self.folder / "state"

    def submit(self, number: int, *options: str) -> None:
        """Submit the job to a server that lasts, as that of this number, and look at its run."""
        from fedpriv_server.cli import app

        asked = ["submit", str(self.file), "--state", str(self.state), *options]
        answer = _invoked(app, asked)
        assert answer.output == f"Job {number} is queued.\n", answer.output
        self.out = self.state / "runs" / f"{number:04d}-test"

    def until_ended(self, number: int, state: str) -> dict[str, Any]:
        """Wait until a job of a server that lasts has come to a state; gives what is said of it."""
        from fedpriv_server.cli import app

        asked = ["show", str(number), "--state", str(self.state), "--json"]
        found: dict[str, Any] = {}

        def has_ended() -> bool:
            found.update(json.loads(_invoked(app, asked).stdout))
            assert found["state"] in ("waiting", "running", state), found
            return bool(found["state"] == state)

        wait_until(has_ended, lambda: (found, self.commands[0].text))
        return found

    def client(self, index: int, fault: str = "", **options: Any) -> Command:
        arguments = ["fedpriv-client", "--config", str(self.site_file(index))]
        return self._start(arguments, f"site-{index}", fault, **options)

    def run(self, *arguments: str, name: str, fault: str = "") -> Command:
        """Start a command of another kind."""
        return self._start(list(arguments), name, fault)

    def ask(self, index: int, *arguments: str) -> Any:
        """What `fedpriv-client` answers for a site."""
        from fedpriv_client.cli import app

        command, *others = arguments
        return _invoked(app, [command, "--config", str(self.site_file(index)), *others])

    def doctor(self, index: int, *arguments: str) -> Any:
        """What `fedpriv doctor` answers for a site."""
        from fedpriv.cli import app

        return _invoked(app, ["doctor", str(self.site_file(index)), *arguments])

    def ask_server(self, *arguments: str) -> Any:
        """What `fedpriv-server` answers for the run."""
        from fedpriv_server.cli import app

        command, *others = arguments
        return _invoked(app, [command, "--out", str(self.out), *others])

    def server_status(self) -> dict[str, Any]:
        """What `fedpriv-server status` says."""
        return dict(json.loads(self.ask_server("status", "--json").stdout))

    def provision(self, *arguments: str) -> None:
        """Run `fedpriv provision`, for what it does to a federation that runs."""
        from fedpriv.cli import app

        answer = _invoked(app, ["provision", str(self.file), *arguments])
        assert answer.exit_code == 0, answer.output

    def _start(self, arguments: list[str], name: str, fault: str, **options: Any) -> Command:
        command = Command(
            self._context,
            arguments,
            self.folder / f"{name}.log",
            fault=fault,
            marker=self.folder / f"{name}.{fault}.struck",
            **options,
        )
        self.commands.append(command)
        return command

    def struck(self, name: str, fault: str) -> bool:
        return (self.folder / f"{name}.{fault}.struck").exists()

    def states(self, index: int) -> list[str]:
        """What became of a site, round by round."""
        return [row["sites"][f"site-{index}"]["status"] for row in self.metrics()]

    def rounds(self) -> int:
        """How many are done."""
        return len(self.metrics()) if (self.out / "metrics.jsonl").exists() else 0

    def metrics(self) -> list[dict[str, Any]]:
        path = self.out / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def totals(self, index: int) -> tuple[float, float, float, int]:
        """What a site's ledger says: ε committed, allocated, spent, and slots reserved."""
        from fedpriv.config.load import load_site
        from fedpriv.privacy.ledger.ledger import Ledger
        from fedpriv_client.settings import ledgers

        (path,) = ledgers(load_site(self.site_file(index))).values()
        info = json.loads((self.out / "run.json").read_text())
        with Ledger.open(path, reading=True) as ledger:
            slots = list(ledger.slots(info["job_id"]))
            return (
                ledger.epsilon_committed,
                ledger.epsilon_allocated,
                ledger.epsilon_spent,
                len(slots),
            )

    def let_go(self, index: int) -> None:
        """Let a site go on that the fault `held` holds."""
        (self.folder / f"site-{index}.held.go").touch()

    def until(self, index: int | None = None, **said: str) -> None:
        """Wait until the server, or a site, says of itself what has these texts in it."""
        folder = self.out if index is None else self.site_file(index).parent / "state"

        def says() -> bool:
            found = read_status(folder)
            return all(text in str(found.get(key)) for key, text in said.items())

        wait_until(says, lambda: read_status(folder))

    def paid(self, index: int) -> int:
        """How many slots a site's report counts, of those that it has answered."""
        path = self.site_file(index).parent / "state" / "budget.json"
        return sum(event.count for event in read(path).events) if path.exists() else 0

    def until_paid(self, index: int, slots: int) -> None:
        """Wait until a site has answered for so many slots."""
        wait_until(lambda: self.paid(index) >= slots, lambda: self.commands[-1].text)

    def until_asks(self, index: int) -> str:
        """Wait until a job waits for somebody's yes at a site; gives its id."""
        found: list[dict[str, Any]] = []

        def waits() -> bool:
            answer = self.ask(index, "jobs", "--json")
            found[:] = json.loads(answer.stdout) if answer.exit_code == 0 else []
            return [job["state"] for job in found] == ["waits for approval"]

        wait_until(waits, lambda: found)
        return str(found[0]["job"])

    def finish(self, server: Command, rounds: int = ROUNDS) -> None:
        """Wait for the job to be finished, and let the sites go."""
        assert server.wait() == 0, server.text
        assert json.loads((self.out / "run.json").read_text())["status"] == "finished"
        assert [row["round"] for row in self.metrics()] == list(range(1, rounds + 1))
        self.stop()

    def stop(self) -> None:
        for command in self.commands:
            if command.code is None:
                command.kill()
        for proxy in self.proxies:
            proxy.close()


def _invoked(app: Any, arguments: list[str]) -> Any:
    from typer.testing import CliRunner

    return CliRunner().invoke(app, arguments)
