"""A site's own public key: what people compare, and what a secure sum's roster has of it."""

from __future__ import annotations

from pathlib import Path

from fedpriv.config.site_file import SiteFile
from fedpriv.pki.points import in_groups
from fedpriv.pki.signing import load_or_create_key
from fedpriv.secure_sum import roster
from fedpriv_client.site_settings import SIGNING_KEY


def own_key(file: SiteFile) -> str | None:
    """Return the public key that signs this site's reports, as people compare it.

    None before there is one.

    Raises:
        LedgerError: the key can't be used, or others may read it.
    """
    is_made = (file.site.state_dir / SIGNING_KEY).exists()
    return in_groups(public_key(file)) if is_made else None


def public_key(file: SiteFile) -> str:
    """Return that public key in hex; it is made if there is none.

    Raises:
        LedgerError: the key can't be used, or others may read it.
    """
    key = load_or_create_key(file.site.state_dir / SIGNING_KEY)
    return key.public_key().public_bytes_raw().hex()


def write_entry(file: SiteFile, path: Path) -> str:
    """Write this site's entry to `path`, and say what to do with it, in sentences.

    The key is the one that signs the site's budget reports; it is made here if there is none.

    Raises:
        LedgerError: the key can't be used, or others may read it.

    Privacy:
        The entry holds the site's name and a public key. The key tells nothing of records.
    """
    entry = roster.RosterEntry(name=file.site.name, public_key=public_key(file))
    roster.write_entry(path, entry)
    return (
        f"Made {path}. Send it to the coordinator, who makes the roster with fedpriv roster make."
        " The fingerprint of your key, to compare by telephone with the other sites:\n"
        f"  {in_groups(entry.public_key)}"
    )
