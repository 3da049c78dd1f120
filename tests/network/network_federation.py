"""A copy of a provisioned federation, and the processes that a test starts for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from network_processes import Command

ROUNDS, UNITS = 3, 24


class Federation:
    """A copy of the federation, and the processes that were started for it."""

    def __init__(self, folder: Path, context: Any) -> None:
        self.folder, self._context = folder, context
        self.out = folder / "run"
        self.file = folder / "federation.toml"
        self.commands: list[Command] = []

    def change(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text, f"{old!r} is not in {path}:\n{text}"
        path.write_text(text.replace(old, new))

    def site_file(self, index: int) -> Path:
        return self.folder / "pki" / "kits" / f"site-{index}" / "site.toml"

    def init(self, index: int) -> None:
        """Make a site's ledger."""
        from fedpriv.config.load import load_site
        from fedpriv_client.init import init_site

        init_site(load_site(self.site_file(index)), self.site_file(index))

    def server(self, fault: str = "", **options: Any) -> Command:
        arguments = ["fedpriv-server", "--config", str(self.file), "--out", str(self.out)]
        return self._start(arguments, "server", fault, **options)

    def client(self, index: int, fault: str = "", **options: Any) -> Command:
        arguments = ["fedpriv-client", "--config", str(self.site_file(index))]
        return self._start(arguments, f"site-{index}", fault, **options)

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

    def metrics(self) -> list[dict[str, Any]]:
        path = self.out / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def totals(self, index: int) -> tuple[float, float, float, int]:
        """What a site's ledger says: ε committed, allocated, spent, and slots reserved."""
        from fedpriv.config.load import load_site
        from fedpriv.privacy.ledger import Ledger
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

    def finish(self, server: Command, seconds: float = 90) -> None:
        """Wait for the job to be finished, and let the sites go."""
        assert server.wait(seconds) == 0, server.text
        assert json.loads((self.out / "run.json").read_text())["status"] == "finished"
        assert [row["round"] for row in self.metrics()] == [1, 2, 3]
        self.stop()

    def stop(self) -> None:
        for command in self.commands:
            if command.code is None:
                command.kill()
