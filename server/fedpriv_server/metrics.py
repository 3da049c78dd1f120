"""What a server tells Prometheus about its job: how far it is, and which sites answer.

Privacy
    The figures are public: what every site's ledger told the server, and what the server sent.
    They do not say how good the model is, or how long anything took: that is in the run directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.metrics import Figure, Samples
from fedpriv.process import read_status

STATES = ("preparing", "waiting", "running", "stopped", "finished")
STATE = Figure("fedpriv_server_state", "1 for the state that the job is in, else 0.", ("state",))
ROUND = Figure("fedpriv_server_round", "Rounds finished; missing until this process finishes one.")
ROUNDS = Figure("fedpriv_server_rounds", "Rounds of the job.")
THERE = Figure("fedpriv_server_site_there", "1 while the site is connected, else 0.", ("site",))
ANSWERED = Figure(
    "fedpriv_server_site_answered",
    "1 if what the site sent in the last round was used, else 0.",
    ("site",),
)
SPENT = Figure("fedpriv_server_site_epsilon_spent", "Epsilon that the site has spent.", ("site",))
COMMITTED = Figure(
    "fedpriv_server_site_epsilon_committed",
    "Epsilon that the site's ledger can ever let through.",
    ("site",),
)
FIGURES = (STATE, ROUND, ROUNDS, THERE, ANSWERED, SPENT, COMMITTED)


class RunFigures:
    """Holds the figures of a run, and takes in each round.

    Args:
        out: the run directory.
        rounds: how many rounds the job has.
    """

    def __init__(self, out: Path, rounds: int) -> None:
        self.turn_to(out, rounds)

    def turn_to(self, out: Path, rounds: int) -> None:
        """Report on another run from now on."""
        self._out, self._rounds = out, rounds
        self._done: int | None = None  # not known before this process has finished a round
        self._sites: Mapping[str, Mapping[str, Any]] = {}

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Take in a round, as its line in metrics.jsonl says it."""
        self._done, self._sites = row["round"], row["sites"]

    def __call__(self) -> dict[Figure, Samples]:
        status = read_status(self._out)
        there = status.get("sites", {})
        return {
            STATE: [((state,), float(status.get("state") == state)) for state in STATES],
            ROUND: [] if self._done is None else [((), float(self._done))],
            ROUNDS: [((), float(self._rounds))],
            THERE: [((name,), float(site["there"])) for name, site in there.items()],
            ANSWERED: [((n,), float(site["status"] == "ok")) for n, site in self._sites.items()],
            SPENT: self._told("epsilon_spent"),
            COMMITTED: self._told("epsilon_committed"),
        }

    def _told(self, key: str) -> Samples:
        sites = self._sites.items()
        return [((name,), site[key]) for name, site in sites if site.get(key) is not None]
