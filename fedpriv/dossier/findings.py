"""The findings of a check of a dossier, in sentences of one line each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from fedpriv.logs import one_line

Kind = Literal["holds", "word", "open"]
_KEY = re.compile("(?:[0-9a-f]{4} ){15}[0-9a-f]{4}")  # as `in_groups` shows it


@dataclass(frozen=True)
class Finding:
    """One thing about a dossier.

    Attributes:
        kind: ``holds``: it was computed from the file and what was given with it. ``word``:
            somebody says so, and nothing here can show it. ``open``: a check was not made.
        text: a clause or a sentence.
        site: the site it is about; empty if it is about the whole.
    """

    kind: Kind
    text: str
    site: str = ""

    def __post_init__(self) -> None:
        """Put the text on one line, because much of it is from the file."""
        object.__setattr__(self, "text", " ".join(one_line(self.text).split()))


def holds(text: str) -> Finding:
    """Return a finding that was computed here."""
    return Finding("holds", text)


def word(text: str) -> Finding:
    """Return a finding that rests on somebody's word alone."""
    return Finding("word", text)


def left_open(text: str) -> Finding:
    """Return a finding about something that could be checked, and was not."""
    return Finding("open", text)


def whose_key(shown: str, who: str, option: str, *, given: bool) -> Finding:
    """Return what is known about the key that somebody signed with.

    Args:
        who: "site" or "coordinator", whose key it should be.
        option: the option by which a person gives the key that they were told.
        given: whether the key was given with that option.
    """
    if given:
        return holds(f"that is the key that was given for the {who}")
    return word(f"that {shown} is the {who}'s key: give {option} with one that the {who} told you")


def about(site: str, found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings, marked with the site that they are about."""
    return (replace(one, site=site) for one in found)


def alike(found: Iterable[Finding]) -> list[tuple[dict[str, str], list[Finding]]]:
    """Group the sites whose findings differ only in names and keys.

    Returns:
        For each group, site → key, and the findings of one site. In a group of several sites, the
        findings say KEY and NAME in place of the site's own.
    """
    of_sites: dict[str, list[Finding]] = {}
    for finding in found:
        if finding.site:
            of_sites.setdefault(finding.site, []).append(finding)
    groups: dict[tuple[Finding, ...], dict[str, str]] = {}
    for site, own in of_sites.items():
        said = f"--site {site}=", "--site NAME="
        shared = [
            replace(one, site="", text=_KEY.sub("KEY", one.text.replace(*said))) for one in own
        ]
        key = _KEY.search(" ".join(one.text for one in own))
        groups.setdefault(tuple(shared), {})[site] = key[0] if key else "none"
    return [
        (keys, of_sites[next(iter(keys))] if len(keys) == 1 else list(shared))
        for shared, keys in groups.items()
    ]


def verdict(found: Iterable[Finding], signer: str | None) -> str:
    """Return in one line the result of a check that found nothing wrong.

    Args:
        signer: the coordinator's key, as the reader gave it; None if it was not given.
    """
    kinds = [one.kind for one in found]
    left = kinds.count("open")
    unchecked = (
        f", {left} could be checked and {'was' if left == 1 else 'were'} not" if left else ""
    )
    return (
        f"VERIFIED{'' if signer else ', but not who signed it'}:"
        f" {kinds.count('holds')} statements hold by computation,"
        f" {kinds.count('word')} are only somebody's word{unchecked}."
    )
