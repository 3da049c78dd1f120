"""The sites that may add up together: their names, and the keys that they sign with.

A roster is made from what the sites' administrators send, and each site's file names it by its
digest. That the keys in it are the sites' own, and not the coordinator's, is for these people to
find out: they compare fingerprints with each other, not through the coordinator.

Privacy:
    All of it is public. An entry that nobody compared counts among those that may collude.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationError, field_validator

from fedpriv.documents import malformed, read_json
from fedpriv.errors import ConfigError
from fedpriv.files import canonical_json, sha256, write_json
from fedpriv.names import Digest, Name
from fedpriv.pki.points import VerifyingKey, in_groups
from fedpriv.privacy.usual import MAX_MEMBERS
from fedpriv.section import Section

_AGAIN = "Ask for the file again, as it was made."


class RosterEntry(Section):
    """A site, as its administrator sends it: the content of ``NAME.roster.json``."""

    name: Name
    public_key: VerifyingKey = Field(
        description="Ed25519, raw, in hex: the site signs its reports with it"
    )


class Roster(Section):
    """The content of ``roster.json``: entries in the order of their names."""

    later: ClassVar[tuple[str, ...]] = ("predecessor",)
    format: Literal[1] = 1
    entries: tuple[RosterEntry, ...] = Field(max_length=MAX_MEMBERS)
    predecessor: Digest | None = Field(None, description="digest of the roster that this follows")

    @field_validator("entries")
    @classmethod
    def _are_several_sites(cls, value: tuple[RosterEntry, ...]) -> tuple[RosterEntry, ...]:
        if len(value) < 2:
            raise ValueError("a sum of one site hides nothing: a roster has at least two sites")
        for what, listed in (
            ("name", [entry.name for entry in value]),
            ("key", [entry.public_key for entry in value]),
        ):
            [(most, times)] = Counter(listed).most_common(1)
            if times > 1:
                raise ValueError(f"two entries have the same {what}, {most}")
        return tuple(sorted(value, key=lambda entry: entry.name))

    @classmethod
    def of(cls, entries: Iterable[RosterEntry], predecessor: str | None = None) -> Self:
        """Make a roster of these entries, in any order.

        Raises:
            ConfigError: too few or too many, or a name or a key twice.
        """
        try:
            return cls(entries=tuple(entries), predecessor=predecessor)
        except ValidationError as error:
            refused = malformed(error, fix="Name each site once.")
            raise refused.but(key="entries", value=...) from None

    @property
    def digest(self) -> str:
        """The digest by which a site's file names the roster."""
        return sha256(canonical_json(self.model_dump(mode="json")))

    def key_of(self, name: str) -> str | None:
        """Return the public key of a site, in hex; None where it is not in the roster."""
        return next((entry.public_key for entry in self.entries if entry.name == name), None)

    def __len__(self) -> int:
        return len(self.entries)


class Accepted(Section):
    """The roster that an administrator accepted, after the one that the site's file states."""

    stated: Digest
    roster: Roster


def accepted(path: Path, stated: Roster) -> Roster:
    """Return the roster that counts: the newest accepted one after the stated one, or the stated.

    Raises:
        ConfigError: what was accepted can't be read.
    """
    found = read_json(path, Accepted, _AGAIN) if path.exists() else None
    return stated if found is None or found.stated != stated.digest else found.roster


def read(path: Path, digest: str | None = None) -> Roster:
    """Read the roster in `path`.

    Args:
        digest: the digest that it must have; None: any.

    Raises:
        ConfigError: there is no roster, it is malformed, or it is another. The error names file,
            key and value.
    """
    roster = read_json(path, Roster, _AGAIN)
    if digest is not None and roster.digest != digest:
        raise ConfigError(
            f"is another roster than {digest}",
            file=path,
            value=roster.digest,
            fix="Use the roster that the sites compared. If it has changed, compare it anew, then"
            " name its digest in the site's file.",
        )
    return roster


def write(path: Path, document: Roster | RosterEntry) -> None:
    """Replace `path` by a roster or an entry, atomically."""
    write_json(path, document.model_dump(mode="json"))


def read_entry(path: Path) -> RosterEntry:
    """Read the entry in `path`, as a site sent it.

    Raises:
        ConfigError: there is no entry, or it is malformed. The error names file, key and value.
    """
    return read_json(path, RosterEntry, _AGAIN)


def successor(old: Roster, entries: Iterable[RosterEntry], without: Iterable[str] = ()) -> Roster:
    """Return the roster that follows another.

    Args:
        entries: those of sites that join, or have a new key.
        without: names of sites that leave.

    Raises:
        ConfigError: somebody leaves who is not in it, or it is no roster; see `Roster.of`.
    """
    kept = {entry.name: entry for entry in old.entries}
    for name in without:
        if kept.pop(name, None) is None:
            raise ConfigError("is not in the roster", key="--without", value=name)
    kept |= {entry.name: entry for entry in entries}
    return Roster.of(kept.values(), old.digest)


def changes(old: Roster, new: Roster) -> Iterator[str]:
    """Yield what people must compare before they approve a successor: these keys, no others."""
    before = {entry.name: entry.public_key for entry in old.entries}
    after = {entry.name: entry.public_key for entry in new.entries}
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"{name} leaves"
        elif name not in before:
            yield f"{name} joins, with the key {in_groups(after[name])}"
        elif before[name] != after[name]:
            yield f"{name} has a new key, {in_groups(after[name])}"
