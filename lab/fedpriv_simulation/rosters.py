"""The roster of a simulation: the keys that its sites have in the run directory."""

from __future__ import annotations

from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.files import private_folder
from fedpriv.pki.signing import load_or_create_key
from fedpriv.secure_sum.roster import Roster, RosterEntry
from fedpriv_client.site_settings import SIGNING_KEY
from fedpriv_server.run_directory import private_site_folder


def simulated_roster(config: JobConfig, run: Path) -> Roster | None:
    """Of all sites of a federation file, with keys that are made where there are none yet.

    None where each site adds all of its noise itself.

    Raises:
        LedgerError: a key can't be used.
    """
    if config.max_colluding is None:
        return None
    entries = []
    for section in config.sites:
        folder = private_folder(private_site_folder(run, section.name))
        key = load_or_create_key(folder / SIGNING_KEY)
        public = key.public_key().public_bytes_raw().hex()
        entries.append(RosterEntry(name=section.name, public_key=public))
    return Roster.of(entries)
