"""`fedpriv.verify`: what the command `fedpriv verify` finds, as a list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpriv.arguments import PathName, checked
from fedpriv.dossier.findings import Finding
from fedpriv.dossier.verify import Given, verify_file
from fedpriv.secure_sum import roster as rosters


@checked
def verify(
    path: PathName,
    *,
    signer: str | None = None,
    sites: Mapping[str, str] | None = None,
    roster: PathName | None = None,
    adapter: PathName | None = None,
    earlier: PathName | None = None,
) -> list[Finding]:
    """Check a dossier without a network: what holds, and what is only somebody's word.

    Args:
        path: the dossier.
        signer: public key, in hex, with which the coordinator has to have signed it.
        sites: name → public key, in hex, with which the site has to have signed its report.
        roster: file of a secure sum's roster, which names the sites' keys.
        adapter: folder of the adapter that the dossier should be about.
        earlier: an older dossier, whose ledgers go on in this one.

    Returns:
        The findings, if nothing that the dossier states is wrong. A finding of kind ``word`` is
        something that nothing here can show. One of kind ``open`` could be checked and was not.

    Raises:
        DossierError: something in it is wrong; the error's class says of which kind that is.
        ConfigError, LedgerError: as in `verify_file`.

    Privacy:
        Reads what was signed to be shown.
    """
    given = Given(
        signer=signer,
        sites=sites or {},
        roster=None if roster is None else rosters.read(Path(roster)),
        adapter=None if adapter is None else Path(adapter),
        earlier=None if earlier is None else Path(earlier),
    )
    return list(verify_file(Path(path), given))
