"""What a coordinator asks of `fedpriv provision`, and whether it can be."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from fedpriv.config.server import ServerSection
from fedpriv.errors import ConfigError, EnrolmentError
from fedpriv.pki.keys import PublicKey
from fedpriv.pki.request import read_request
from fedpriv_server.site_keys import SiteKeys

SERVER = "server"  # what --renew calls the server; no site may have this name
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


@dataclass(frozen=True)
class ProvisionOptions:
    """What the coordinator asks for, beyond what is missing.

    Attributes:
        days: for which new certificates are good.
        approve: requests that sites made, to be certified.
        revoke: sites that are not to be let in again.
        renew: sites, or ``server``, that get a new certificate and, where it was made here, a
            new key.
        keys_at_sites: make no key for a new site, but wait for its request.
        encrypt: put the authority's key under a passphrase.
    """

    days: int = 365
    approve: Sequence[Path] = ()
    revoke: Sequence[str] = ()
    renew: Sequence[str] = ()
    keys_at_sites: bool = False
    encrypt: bool = False


def server_names(server: ServerSection) -> tuple[str, ...]:
    """Host names and IP addresses for the server's certificate, that of `address` first.

    Raises:
        ConfigError: one is neither.
    """
    host = server.address.rpartition(":")[0].strip("[]")
    found = []
    for key, name in [("address", host), *(("names", name) for name in server.names)]:
        try:
            found.append(str(ip_address(name)))
        except ValueError:
            if not _HOST.fullmatch(name) or not name.isascii():
                raise ConfigError(
                    "is neither a host name nor an IP address",
                    key=f"server.{key}",
                    value=name,
                    fix="State it as sites dial it, without a port.",
                ) from None
            found.append(name.lower())
    return tuple(dict.fromkeys(found))


def read_requests(paths: Sequence[Path]) -> dict[str, PublicKey]:
    """Read the public keys that are to be certified, by the name of their site.

    Raises:
        EnrolmentError: a request is damaged, or it is the second request of its site.
    """
    found: dict[str, PublicKey] = {}
    for path in paths:
        name, key = read_request(path)
        if name in found:
            raise EnrolmentError(
                f"{path}: is a second request of site {name!r}. Approve one of them."
            )
        found[name] = key
    return found


def check_options(
    in_file: Collection[str],
    options: ProvisionOptions,
    requested: Collection[str],
    site_keys: SiteKeys,
) -> None:
    """Refuse options that name nobody or contradict each other, before any is carried out.

    Args:
        in_file: names of the sites of the federation file.

    Raises:
        ConfigError: names the option and the value.
    """
    if SERVER in in_file:
        raise ConfigError(
            "is what --renew calls the server", key="sites.name", value=SERVER, fix="Rename it."
        )
    certified = {site.name for site in site_keys.sites.values() if site.certificate is not None}
    for key, names, known in (
        ("--approve", requested, in_file),
        ("--renew", options.renew, {*in_file, SERVER}),
        ("--revoke", options.revoke, certified),
    ):
        for name in names:
            if name not in known:
                there = ", ".join(sorted(known)) or "none yet"
                raise ConfigError(
                    "names no such site", key=key, value=name, fix=f"There is: {there}."
                )
    for name in {*options.renew, *requested} & set(options.revoke):
        raise ConfigError("is also to be let in", key="--revoke", value=name, fix="Choose one.")
