"""Make what a federation needs to run over the network: keys, certificates, enrolments.

Running it again makes what is missing and leaves the rest. A key is replaced only where the
coordinator says so. A key that was replaced or revoked is never accepted again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509

from fedpriv.config.job import JobConfig
from fedpriv.config.server import ServerSection
from fedpriv.errors import ConfigError, EnrolmentError
from fedpriv.files import private_folder, write_atomic
from fedpriv.pki.certificates import (
    Description,
    certificate_pem,
    check_certificate,
    describe,
    load_certificate,
)
from fedpriv.pki.document import read_document, write_document
from fedpriv.pki.enrolment import Manifest, is_signed
from fedpriv.pki.keys import PublicKey, fingerprint, is_encrypted, load_key, new_key, write_key
from fedpriv.pki.points import in_groups
from fedpriv.pki.request import read_request
from fedpriv.process import only_process
from fedpriv_server.authority import (
    Authority,
    Passphrase,
    new_manifest,
    server_certificate,
    sign_manifest,
    site_certificate,
)
from fedpriv_server.site_file import site_file
from fedpriv_server.site_keys import Site, SiteKeys

SERVER = "server"  # what --renew calls the server
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


@dataclass(frozen=True)
class ProvisionOptions:
    """What the coordinator asks for, beyond making what is missing.

    Attributes:
        days: how many days new certificates are good for.
        approve: files of sites' requests to be certified.
        revoke: names of sites that must not be let in again.
        renew: names of sites, or ``server``, that get a new certificate. They also get a new key,
            if their key was made here.
        keys_at_sites: make no key for a new site, but wait for its request.
        encrypt: encrypt the authority's key with a passphrase.
    """

    days: int = 365
    approve: Sequence[Path] = ()
    revoke: Sequence[str] = ()
    renew: Sequence[str] = ()
    keys_at_sites: bool = False
    encrypt: bool = False


@dataclass
class Provisioned:
    """What the folder holds after provisioning.

    Attributes:
        server: what the server's certificate says.
        done: what was done, in sentences; empty if nothing was missing.
    """

    authority: Authority
    server: Description
    done: list[str] = field(default_factory=list)


def provision(
    config: JobConfig,
    options: ProvisionOptions,
    *,
    passphrase: Passphrase,
    now: datetime | None = None,
) -> Provisioned:
    """Make what `config` needs in its ``[server] pki`` folder, and carry out `options`.

    Args:
        config: a job with absolute paths, as `load_job` returns it.
        passphrase: returns the passphrase of the authority's key. It is called only when the key
            is encrypted and needed.

    Raises:
        ConfigError: the file or an option names something that can't be.
        EnrolmentError: something in the folder is damaged or missing, or contradicts the options.
        OSError: the folder can't be written.
        RunningError: another process works in the folder.
    """
    server = config.server
    if server is None:
        raise ConfigError("is missing", key="server", fix="State the address that sites dial.")
    names = server_names(server)
    requests = read_requests(options.approve)
    now = now or datetime.now(UTC)
    with only_process(private_folder(server.pki)):
        if Authority.exists(server.pki):
            authority, done = Authority(server.pki, passphrase), []
        else:
            name, encrypt = config.job.name, options.encrypt
            authority = Authority.create(
                server.pki, name, passphrase=passphrase, encrypt=encrypt, now=now
            )
            done = [f"Made the authority of federation {authority.name!r}."]
        expires = authority.certificate.not_valid_after_utc
        if now > expires:
            raise EnrolmentError(
                f"{server.pki}: the authority expired on {expires:%Y-%m-%d}, and all certificates"
                " with it. Provision into a new folder."
            )
        check_options([site.name for site in config.sites], options, requests, authority.site_keys)
        path = server.pki / "ca.key"
        if options.encrypt and not is_encrypted(path.read_bytes()):
            write_key(path, authority.key, passphrase=passphrase(), replace=True)
            done.append("Encrypted the authority's key with a passphrase.")
        work = _Work(config, server.address, names, authority, options, requests, now, done)
        for name in options.revoke:
            work.revoke(authority.site_keys.sites[name])
        for one in config.sites:
            work.site(one.name)
        described = work.server()
        for site in authority.site_keys.sites.values():
            if site.certificate is not None and site.revoked is None:
                work.enrolment(site, site.certificate)
    return Provisioned(authority, described, done)


@dataclass(frozen=True)
class _Work:
    """Holds one run of provisioning: what it was asked to do, and what it has done so far."""

    config: JobConfig
    address: str
    names: tuple[str, ...]
    authority: Authority
    options: ProvisionOptions
    requests: dict[str, PublicKey]
    now: datetime
    done: list[str]

    def revoke(self, site: Site) -> None:
        if site.revoked is None:
            now = self.now.replace(microsecond=0)
            self.authority.site_keys.write(site.model_copy(update={"revoked": now}))
            self.done.append(f"{site.name}: revoked; the server refuses it.")

    def site(self, name: str) -> None:
        """Certify a site of the file if it is new, has sent a request, or has to be renewed."""
        site_keys, request = self.authority.site_keys, self.requests.get(name)
        before = site_keys.sites.get(name)
        if request is not None:
            self._approve(before or Site(name=name, key_made="site"), request)
        elif before is not None:
            if name in self.options.renew:
                self._renew(before)
        elif self.options.keys_at_sites:
            site_keys.write(Site(name=name, key_made="site"))
            self.done.append(f"{name}: waits for the request that fedpriv-client enroll makes.")
        else:
            key = _own_key(self._folder(name) / "site.key")
            self._certify(Site(name=name, key_made="here"), key)

    def _approve(self, site: Site, key: PublicKey) -> None:
        is_its_key = fingerprint(key) == site.fingerprint
        if is_its_key and site.revoked is not None:
            raise EnrolmentError(
                f"The key {in_groups(fingerprint(key))} of site {site.name!r} was revoked, and is"
                " never accepted again. The site has to enroll with a new one."
            )
        if site.certificate is not None and site.name not in self.options.renew:
            if is_its_key:
                return
            raise EnrolmentError(
                f"Site {site.name!r} has another key, {in_groups(site.fingerprint or '')}, and this"
                f" request is for {in_groups(fingerprint(key))}. If the site says that this"
                f" is its new key, add --renew {site.name}: the old key is then refused."
            )
        self._certify(site.model_copy(update={"key_made": "site"}), key)
        (self._folder(site.name) / "site.key").unlink(missing_ok=True)

    def _renew(self, site: Site) -> None:
        if site.key_made == "here":
            key = new_key()
            write_key(private_folder(self._folder(site.name)) / "site.key", key, replace=True)
            self._certify(site, key.public_key())
            return
        if site.certificate is None or site.revoked is not None:
            raise EnrolmentError(
                f"Site {site.name!r} makes its own key and has none that is accepted. It has to"
                " send a request made by fedpriv-client enroll; name it with --approve."
            )
        key_in_use = site.certificate.public_key()
        assert isinstance(key_in_use, PublicKey)
        self._certify(site, key_in_use)

    def _certify(self, site: Site, key: PublicKey) -> None:
        retired = site.retired
        if site.fingerprint is not None and site.fingerprint != fingerprint(key):
            retired += (site.fingerprint,)
        ca, ca_key, days = self.authority.certificate, self.authority.key, self.options.days
        certificate = site_certificate(ca, ca_key, key, site.name, days=days, now=self.now)
        changed = {"certificate": certificate, "revoked": None, "retired": retired}
        self.authority.site_keys.write(site.model_copy(update=changed))
        where = "here" if site.key_made == "here" else "at the site"
        key_shown = in_groups(fingerprint(key))
        self.done.append(f"{site.name}: certified its key {key_shown}, made {where}.")

    def server(self) -> Description:
        """Make the server's key and certificate if they are missing or for other names."""
        folder, ca, days = self.authority.folder, self.authority.certificate, self.options.days
        if SERVER in self.options.renew:
            write_key(folder / "server.key", new_key(), replace=True)
        key, path = _own_key(folder / "server.key"), folder / "server.crt"
        with suppress(EnrolmentError):  # missing, damaged, or for another key or authority
            kept = load_certificate(path)
            starts = describe(kept).starts  # only --renew replaces an expired certificate
            found = check_certificate(kept, ca, use="server", path=path, key=key, now=starts)
            if found.names == self.names:
                return found
        ca_key, now = self.authority.key, self.now
        made = server_certificate(ca, ca_key, key, self.names, days=days, now=now)
        write_atomic(path, certificate_pem(made))
        self.done.append(
            f"server: certified for {', '.join(self.names)}. A running server uses it"
            " after it is started again."
        )
        return describe(made)

    def enrolment(self, site: Site, certificate: x509.Certificate) -> None:
        """Complete the files that a site is sent. Its ``site.toml`` is written only once."""
        folder = private_folder(self._folder(site.name))
        key = folder / "site.key"
        if key.exists() and fingerprint(load_key(key).public_key()) != site.fingerprint:
            raise EnrolmentError(
                f"{key}: is not the key of the site's certificate; a renewal was cut short. Run"
                f" fedpriv provision again with --renew {site.name}."
            )
        write_atomic(folder / "ca.crt", certificate_pem(self.authority.certificate))
        write_atomic(folder / "site.crt", certificate_pem(certificate))
        if not (folder / "site.toml").exists():
            write_atomic(folder / "site.toml", site_file(self.config, site.name, self.address))
        self._manifest(folder / "enrolment.json", certificate)

    def _manifest(self, path: Path, certificate: x509.Certificate) -> None:
        """Write a site's manifest, unless the existing one says the same and is signed."""
        manifest = new_manifest(
            self.authority.certificate,
            certificate,
            federation=self.authority.federation,
            federation_name=self.authority.name,
            address=self.address,
            names=self.names,
            now=self.now,
        )
        with suppress(EnrolmentError):
            old = read_document(path, Manifest, fix="")
            same = old.model_copy(update={"issued": manifest.issued, "signature": ""}) == manifest
            if same and is_signed(old, self.authority.certificate):
                return
        write_document(path, sign_manifest(manifest, self.authority.key))
        send = f"Compare its key by telephone, then send the site {path.parent}."
        if path.with_name("site.key").exists():
            send = f"Send the site {path.parent} privately: its key is in there."
        self.done.append(f"{manifest.site}: wrote its enrolment. {send}")

    def _folder(self, name: str) -> Path:
        return self.authority.folder / "enrolments" / name


def _own_key(path: Path) -> PublicKey:
    """Return the public key of the private key in `path`. Make the private key if it is missing."""
    if not path.exists():
        write_key(path, new_key())
    return load_key(path).public_key()


def server_names(server: ServerSection) -> tuple[str, ...]:
    """Return the host names and IP addresses for the server's certificate. `address` comes first.

    Raises:
        ConfigError: a name is neither a host name nor an IP address.
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
    """Read the public keys to be certified: name of the site → key.

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
                    "names an unknown site", key=key, value=name, fix=f"Known sites: {there}."
                )
    for name in {*options.renew, *requested} & set(options.revoke):
        raise ConfigError(
            "is also given to --renew or --approve", key="--revoke", value=name, fix="Choose one."
        )
