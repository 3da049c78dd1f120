"""A site in the roster of a secure sum: its public key, its entry, and the rosters it accepts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedpriv.config.site_file import SiteFile
from fedpriv.errors import ConfigError
from fedpriv.files import write_json
from fedpriv.pki.points import in_groups
from fedpriv.pki.signing import load_or_create_key
from fedpriv.secure_sum import roster
from fedpriv_client.settings import accepted_path, roster_of
from fedpriv_client.site_settings import SIGNING_KEY

ADVICE = (
    "Compare these keys by telephone with the sites that own them, not with the coordinator. All"
    " other sites are as before."
)


def own_key(file: SiteFile) -> str | None:
    """Return the public key that signs this site's reports, as people compare it.

    The value is None before there is a key.

    Raises:
        LedgerError: the key can't be used, or others may read it.
    """
    is_made = (file.site.state_dir / SIGNING_KEY).exists()
    return in_groups(public_key(file)) if is_made else None


def public_key(file: SiteFile) -> str:
    """Return that public key in hex. The key is made if there is none.

    Raises:
        LedgerError: the key can't be used, or others may read it.
    """
    key = load_or_create_key(file.site.state_dir / SIGNING_KEY)
    return key.public_key().public_bytes_raw().hex()


def write_entry(file: SiteFile, path: Path) -> str:
    """Write this site's entry to `path`, and say what to do with it, in sentences.

    The key is the one that signs the site's budget reports. It is made if there is none.

    Raises:
        LedgerError: the key can't be used, or others may read it.

    Privacy:
        The entry holds the site's name and a public key. The key tells nothing of records.
    """
    entry = roster.RosterEntry(name=file.site.name, public_key=public_key(file))
    roster.write(path, entry)
    return (
        f"Made {path}. Send it to the coordinator, who makes the roster with fedpriv roster make."
        " The fingerprint of your key, to compare by telephone with the other sites:\n"
        f"  {in_groups(entry.public_key)}"
    )


def accept(file: SiteFile, path: Path, ask: Callable[[], object]) -> str:
    """Accept a roster that follows this site's own, and return what comes next, in a sentence.

    Args:
        path: file of the new roster.
        ask: asks the person, who was shown the changes, and ends the command at a no.

    Raises:
        ConfigError: this site has no roster, the new one follows another, or lacks this site's key.
    """
    old, new = roster_of(file), roster.read(path)
    if old is None or file.secure_sum is None:
        fix = "Compare the keys of all sites, and state this roster there."
        raise ConfigError("is missing, so no roster can follow it", key="secure_sum", fix=fix)
    if new.predecessor != old.digest:
        problem = f"does not follow this site's roster, {old.digest}"
        fix = "Accept the rosters between first, or ask the coordinator for one that follows it."
        raise ConfigError(problem, file=path, key="predecessor", value=new.predecessor, fix=fix)
    if new.key_of(file.site.name) != public_key(file):
        fix = "Send the coordinator fedpriv-client roster-entry, and ask for another roster."
        raise ConfigError("does not name this site with its key", file=path, fix=fix)
    print("\n".join(f"  {line}" for line in roster.changes(old, new)))
    print(f"{ADVICE}\nDigest {new.digest}")
    ask()
    accepted = roster.Accepted(stated=file.secure_sum.digest, roster=new)
    write_json(accepted_path(file), accepted.model_dump(mode="json"))
    return "Accepted. It counts from the next start of the client on, for jobs that name it."
