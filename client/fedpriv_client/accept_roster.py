"""`fedpriv-client accept-roster`: one yes to who joins a secure sum, who leaves, and new keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedpriv.config.site_file import SiteFile
from fedpriv.errors import ConfigError
from fedpriv.files import write_json
from fedpriv.secure_sum.roster import Accepted, read
from fedpriv.secure_sum.succession import changes
from fedpriv_client.roster_entry import public_key
from fedpriv_client.settings import accepted_path, roster_of

ADVICE = (
    "Compare these keys by telephone with the sites that own them, not with the coordinator. All"
    " other sites are as before."
)


def accept(file: SiteFile, path: Path, ask: Callable[[], object]) -> str:
    """Accept a roster that follows this site's own, and return what comes next, in a sentence.

    Args:
        path: of the new roster.
        ask: ends the command if a person, who was shown what changes, says no.

    Raises:
        ConfigError: it follows another roster, or this site is not in it with its own key.
    """
    old, new = roster_of(file), read(path)
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
    print("\n".join(f"  {line}" for line in changes(old, new)))
    print(f"{ADVICE}\nDigest {new.digest}")
    ask()
    accepted = Accepted(stated=file.secure_sum.digest, roster=new)
    write_json(accepted_path(file), accepted.model_dump(mode="json"))
    return "Accepted. It counts from the next start of the client on, for jobs that name it."
