"""Figures of a site's process for Prometheus: public figures of ledger and orders.

Privacy
    They are read from the status, the orders, the kept proposals, and the sums of the ledger. None
    of that is computed from records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpriv.config.site_file import SiteFile
from fedpriv.errors import FedprivError
from fedpriv.metrics import Figure, Samples
from fedpriv.process import read_status
from fedpriv_client.account import written_account
from fedpriv_client.jobs import STATES, jobs_of
from fedpriv_client.orders import Orders
from fedpriv_client.settings import site_settings

CONNECTED = Figure("fedpriv_site_connected", "1 while the site is connected to its server, else 0.")
PAUSED = Figure("fedpriv_site_paused", "1 while the administrator has paused the site, else 0.")
JOBS = Figure("fedpriv_site_jobs", "Jobs by state.", ("state",))
BUDGET = Figure("fedpriv_site_epsilon_budget", "Epsilon for life.", ("claim",))
COMMITTED = Figure(
    "fedpriv_site_epsilon_committed", "Epsilon that the ledger can ever let through.", ("claim",)
)
ALLOCATED = Figure(
    "fedpriv_site_epsilon_allocated", "Epsilon of the plans accepted so far.", ("claim",)
)
SPENT = Figure("fedpriv_site_epsilon_spent", "Epsilon of the slots paid so far.", ("claim",))
DELTA = Figure("fedpriv_site_delta", "Delta of the claim.")
ROWS = Figure("fedpriv_site_ledger_rows", "Rows of the ledger.")
PAID = Figure("fedpriv_site_slots_paid_total", "Slots that were paid, over all jobs.", (), True)
RELEASED = Figure(
    "fedpriv_site_slots_released_total", "Slots that were released, over all jobs.", (), True
)
FIGURES = tuple(named for named in list(vars().values()) if isinstance(named, Figure))


def site_figures(file: SiteFile, config: Path) -> dict[Figure, Samples]:
    """Return a site's present figures. Those of a ledger that is not open yet are left out."""
    state_dir = file.site.state_dir
    is_connected = read_status(state_dir).get("connection") == "connected"
    found: dict[Figure, Samples] = {CONNECTED: _one(is_connected)}
    try:
        found[PAUSED] = _one(Orders.read(state_dir).paused)
        settings = site_settings(file, config)
        account = written_account(settings)
        states = Counter(job.state for job in jobs_of(settings, account).jobs)
    except FedprivError:
        return found
    found[JOBS] = [((state,), states[state]) for state in STATES]
    found[BUDGET] = list(_by_claim(account, "budget", "budget_alone"))
    for figure, name in ((COMMITTED, "committed"), (ALLOCATED, "allocated"), (SPENT, "spent")):
        found[figure] = list(_by_claim(account, f"epsilon_{name}", f"epsilon_alone_{name}"))
    plans = account["plans"]
    return found | {
        DELTA: _one(account["delta"]),
        ROWS: _one(account["rows"]),
        PAID: _one(sum(plan["reserved"] for plan in plans)),
        RELEASED: _one(sum(plan["released"] for plan in plans)),
    }


def _one(value: float) -> Samples:
    return [((), float(value))]


def _by_claim(account: Mapping[str, Any], *keys: str) -> Iterator[tuple[tuple[str, ...], float]]:
    for claim, key in zip(("trust", "alone"), keys, strict=True):
        if account[key] is not None:
            yield (claim,), account[key]
