"""`fedpriv provision`: its options, and a table of all certificates and when they expire."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpriv.errors import EnrolmentError
from fedpriv.pki.points import in_groups, in_rows

if TYPE_CHECKING:
    from fedpriv_server.provision import Provisioned

PASSPHRASE = "FEDPRIV_CA_PASSPHRASE"


def provision(
    file: Annotated[Path, typer.Argument(help="The federation file, with a [server] table.")],
    days: Annotated[
        int, typer.Option(help="Days that new certificates are good for.", min=1, max=3650)
    ] = 365,
    approve: Annotated[
        list[Path] | None,
        typer.Option(metavar="REQUEST.pem", help="Certify a key that a site made itself."),
    ] = None,
    revoke: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Revoke a site's key.")
    ] = None,
    renew: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|server",
            help="Make a new certificate; and a new key, if made here or given with --approve.",
        ),
    ] = None,
    encrypt_ca: Annotated[
        bool,
        typer.Option(
            "--encrypt-ca",
            help=f"Encrypt ca.key with a passphrase, asked for or from {PASSPHRASE}.",
        ),
    ] = False,
    keys_at_sites: Annotated[
        bool, typer.Option("--keys-at-sites", help="Make no keys for sites; each site enrols.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a federation's keys, certificates and enrolments; typed again, only the missing ones."""
    from fedpriv.config.load import load_job
    from fedpriv_server.provision import ProvisionOptions
    from fedpriv_server.provision import provision as make

    @cache
    def passphrase() -> bytes:
        given = os.environ.get(PASSPHRASE) or typer.prompt(
            "Passphrase of ca.key", hide_input=True, confirmation_prompt=encrypt_ca, err=True
        )
        return str(given).encode()

    options = ProvisionOptions(
        days, approve or (), revoke or (), renew or (), keys_at_sites, encrypt_ca
    )
    try:
        made = make(load_job(file), options, passphrase=passphrase)
    except OSError as error:
        raise EnrolmentError(f"{error.filename}: can't be written: {error.strerror}.") from None
    now = datetime.now(UTC)
    if as_json:
        print(json.dumps(summary(made, now), indent=2))
    else:
        show(summary(made, now), Console(highlight=False))


def summary(made: Provisioned, now: datetime) -> dict[str, Any]:
    """Describe what is provisioned, as JSON. Nothing in it is secret."""
    authority, server = made.authority, made.server
    sites = {
        name: {
            "fingerprint": site.fingerprint,
            "key_made": site.key_made,
            "expires": site.expires and _iso(site.expires),
            "status": site.status(now),
            "enrolment": site.certificate and str(authority.folder / "enrolments" / name),
        }
        for name, site in authority.site_keys.sites.items()
    }
    return {
        "federation": authority.federation,
        "name": authority.name,
        "folder": str(authority.folder),
        "ca": {
            "fingerprint": authority.fingerprint,
            "expires": _iso(authority.certificate.not_valid_after_utc),
        },
        "server": {
            "names": server.names,
            "fingerprint": server.fingerprint,
            "key_made": "here",
            "expires": _iso(server.expires),
            "status": "active" if now <= server.expires else "expired",
        },
        "sites": sites,
        "done": made.done,
    }


def show(found: dict[str, Any], console: Console) -> None:
    """Print what was done, the table, and the fingerprint to compare."""
    say = partial(console.print, soft_wrap=True, markup=False)
    for sentence in found["done"] or ["Nothing was missing."]:
        say(sentence)
    table = Table("", "key", "made", "expires", "status")
    for name, one in [("server", found["server"]), *found["sites"].items()]:
        status = one["status"]
        table.add_row(
            name,
            in_groups(one["fingerprint"] or ""),
            {"here": "here", "site": "at the site"}[one["key_made"]],
            (one["expires"] or "")[:10],
            status if status == "active" else f"[bold]{status}[/]",
        )
    console.print(table)
    say("fedpriv doctor FILE says which certificates end soon, and whether ca.key is safe.")
    say(
        "Fingerprint of the authority, sha256. Read it out by telephone to each site;"
        " fedpriv-client setup shows the site the same one:"
    )
    for line in in_rows(found["ca"]["fingerprint"]):
        console.print(f"  [bold]{line}[/]")


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
