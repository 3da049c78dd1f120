"""What a site sends so that it can be put into the roster of a secure sum."""

from __future__ import annotations

from pathlib import Path

from fedpriv.config.site_file import SiteFile
from fedpriv.pki.signing import load_or_create_key
from fedpriv.secure_sum import roster
from fedpriv_client.site_settings import SIGNING_KEY


def write_entry(file: SiteFile, path: Path) -> str:
    """Write this site's entry to `path`, and say what to do with it, in sentences.

    The key is the one that signs the site's budget reports; it is made here if there is none.

    Raises:
        LedgerError: the key can't be used, or others may read it.

    Privacy:
        The entry holds the site's name and a public key. The key tells nothing of records.
    """
    key = load_or_create_key(file.site.state_dir / SIGNING_KEY).public_key()
    entry = roster.RosterEntry(name=file.site.name, public_key=key.public_bytes_raw().hex())
    roster.write_entry(path, entry)
    return (
        f"Made {path}. Send it to the coordinator, who makes the roster with fedpriv roster make."
        " The fingerprint of your key, to compare by telephone with the other sites:\n"
        f"  {roster.fingerprint(entry.public_key)}"
    )
