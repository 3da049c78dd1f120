"""What a site's ledger adds up to, for people who look while its process has the ledger.

Only one process can have a ledger open. So the site's process writes down what the rows add up to,
whenever that has changed. People who only look read that account, or the ledger itself if no
process has it.

Privacy
    Public: terms, plans, and sums over the ledger's rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedpriv.errors import ConfigError, LedgerInUseError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv_client.held_space import HeldSpace, write_beside
from fedpriv_client.site_ledger import open_ledger
from fedpriv_client.site_settings import SiteSettings


def account_file(settings: SiteSettings) -> Path:
    """Return the path of a ledger's written account. Each ledger has its own."""
    return settings.state_dir / "accounts" / f"{settings.terms.dataset_id}.json"


def write_account(ledger: Ledger, settings: SiteSettings, held: HeldSpace | None = None) -> None:
    """Write down what the rows of a site's ledger add up to now.

    Raises:
        OSError: as `write_beside`.
    """
    path = account_file(settings)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_beside(path, json.dumps(_figures(ledger), indent=2) + "\n", 0o600, held)


def read_account(settings: SiteSettings) -> dict[str, Any]:
    """Return the sums of the rows of a site's ledger, as `Ledger.figures`, and the number of rows.

    Raises:
        LedgerError: the ledger can't be used, and no process holds it.
        ConfigError: a process holds it, and the account that this process wrote can't be read.
    """
    try:
        with open_ledger(settings, reading=True) as ledger:
            return _figures(ledger)
    except LedgerInUseError:
        return written_account(settings)


def written_account(settings: SiteSettings) -> dict[str, Any]:
    """Return the account that the site's process wrote last.

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    path = account_file(settings)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = found["plans"], found["used"], found["rows"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        fix = "The client writes it when it starts; wait for that, or start it again."
        raise ConfigError("can't be read", file=path, fix=fix) from None
    return found


def _figures(ledger: Ledger) -> dict[str, Any]:
    return {**ledger.figures(), "rows": ledger.head.rows}
