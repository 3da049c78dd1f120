"""Check a dossier on a machine that never saw the run, without a network.

What is checked, in this order: the bytes and who signed them; that the derived files are those that
the others give; each site's report, with the rows of its ledger; that no ledger is there twice; the
adapter; an earlier dossier. The check ends at the first thing that is wrong, with an error that
says what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedpriv.base_model import CONFIG, WEIGHTS
from fedpriv.dossier.adapter import check_adapter
from fedpriv.dossier.answers import answers_of
from fedpriv.dossier.audit import check_audit
from fedpriv.dossier.check_site import check_site
from fedpriv.dossier.earlier import check_continues
from fedpriv.dossier.facts import ANSWERS, PAGE, Contents, Facts, contents_of
from fedpriv.dossier.findings import Finding, about, holds, left_open, whose_key, word
from fedpriv.dossier.package import Package, read
from fedpriv.dossier.page import page_of
from fedpriv.dossier.prices import prices, same_prices
from fedpriv.dossier.statement import Statement
from fedpriv.dossier.sums import Term
from fedpriv.dossier.third import third_accountant
from fedpriv.errors import (
    AlteredError,
    ConfigError,
    DossierError,
    ForkedError,
    SignerError,
    UnderstatedError,
)
from fedpriv.pki.points import in_groups, verifying_key
from fedpriv.report import received
from fedpriv.report.figures import small, upper
from fedpriv.secure_sum.roster import Roster
from fedpriv.software import software


def given_key(text: str, option: str) -> str:
    """Return the key that a person named, in 64 hex digits.

    Args:
        text: the key, with or without spaces, in capitals or not.

    Raises:
        ConfigError: it is no key, or only a part of one; the error names the option and the value.
    """
    key = "".join(text.split()).lower()
    try:
        verifying_key(key)
    except ValueError:
        part = f", but {len(key)} of them" if 0 < len(key) < 64 else ""
        problem = f"is not an Ed25519 public key in 64 hex digits{part}, or accepts any signature"
        fix = "Ask the key's owner for all of it."
        raise ConfigError(problem, key=option, value=text, fix=fix) from None
    return key


@dataclass(frozen=True)
class Given:
    """What the person who checks a dossier knows from elsewhere.

    Attributes:
        signer: the coordinator's public key, as `given_key` takes it.
        sites: the public key of each site's reports, by name.
        roster: the roster with the keys of sites not in `sites`; in a secure sum, the job's.
        adapter: the folder of the adapter that the dossier should be about.
        earlier: another dossier by the same key, whose ledgers continue in this one.
        third: another accountant; by default dp-accounting, if installed.
    """

    signer: str | None = None
    sites: Mapping[str, str] = field(default_factory=dict)
    roster: Roster | None = None
    adapter: Path | None = None
    earlier: Path | None = None
    third: Callable[[Term], float] | None = field(default_factory=third_accountant)

    def __post_init__(self) -> None:
        """Raise ConfigError for a key that nobody can hold."""
        if self.signer is not None:
            object.__setattr__(self, "signer", given_key(self.signer, "--signer"))
        sites = {name: given_key(key, f"--site {name}") for name, key in self.sites.items()}
        object.__setattr__(self, "sites", sites)


def verify_file(path: Path, given: Given) -> Iterator[Finding]:
    """Check the dossier in a file, finding by finding.

    Raises:
        DossierError: something in it is wrong; the error's class says of which kind that is.
        ConfigError: a file in it is malformed, or a key is given for a site that is not in it.
        LedgerError: rows of a ledger don't add up.
    """
    return verify_package(read(path, given.signer), path, given)


def own_page(path: Path, verdict: str = "") -> bytes:
    """Make the page of a dossier as this fedpriv does, whatever page is in the file.

    Args:
        verdict: the verdict of the check, in one line.

    Raises:
        DossierError, ConfigError, LedgerError: as in `verify_file`, if something can't be read.
    """
    return page_of(contents_of(read(path).files, path), verdict)


def verify_package(package: Package, path: Path, given: Given) -> Iterator[Finding]:
    """Check a dossier whose bytes were read and whose signature holds, finding by finding."""
    yield holds(f"every byte is what key {in_groups(package.signer)} signed")
    shown, is_given = in_groups(package.signer), given.signer is not None
    yield whose_key(shown, "coordinator", "--signer KEY", given=is_given)
    contents = contents_of(package.files, path)
    yield from _check_derived(package, contents, path)
    _check_facts(contents, path)
    yield from _check_roster(contents.facts, path, given.roster)
    yield from _check_sites(contents, path, given)
    _check_counts(contents.facts, path)
    yield from _people_in_several(contents)
    if contents.audit is not None:
        yield from check_audit(contents.audit, contents.facts.job, contents.facts.base, path)
    yield from check_adapter(contents.facts, path, given.adapter)
    if given.earlier is not None:
        before = read(given.earlier, package.signer)
        known = [name for name in contents.reports if _key_of(name, given) is not None]
        yield from check_continues(
            contents, contents_of(before.files, given.earlier), path, given.earlier, known
        )
    yield from _words(contents)


def _check_derived(package: Package, contents: Contents, path: Path) -> Iterator[Finding]:
    """Check that the page and the answers are what the other files give."""
    made = {ANSWERS: answers_of(contents), PAGE: page_of(contents)}
    odd = [name for name, data in made.items() if package.files[name] != data]
    if not odd:
        yield holds(f"{PAGE} and {ANSWERS} are what the other files give")
    elif contents.facts.written_by == software()["fedpriv"]:
        raise AlteredError(
            f"{path}: {odd[0]} is not what the other files give: it shows something else than they"
            " do. Don't rely on it."
        )
    else:
        yield left_open(
            f"whether {' and '.join(odd)} show what the other files say. Don't read them: --page"
            " FILE writes the page that this fedpriv makes. They are said to be of another one,"
            f" {contents.facts.written_by.version}"  # last, as a long one is cut
        )


def _check_facts(contents: Contents, path: Path) -> None:
    facts = contents.facts
    for what, stated, proposed in (
        ("job", facts.job, facts.proposal.job_id),
        ("base model", facts.base, facts.proposal.base_digest),
    ):
        if stated != proposed:
            raise DossierError(
                f"{path}: its {what} is {stated}, and that of its proposal {proposed}."
            )
    for name in (WEIGHTS, CONFIG):
        if name not in facts.adapter:
            raise DossierError(
                f"{path}: it names no digest of {name}, so it is about no adapter: any weights"
                " would do."
            )
    steps = facts.proposal.steps - facts.proposal.training_steps
    if facts.evaluation.steps != steps:
        raise UnderstatedError(
            f"{path}: counts {facts.evaluation.steps} steps of looks at held-out records, and its"
            f" proposal has {steps}."
        )
    computed = prices(facts.proposal, contents.reports)
    if not same_prices(facts.evaluation.prices, computed):
        raise UnderstatedError(f"{path}: looks at held-out records cost another ε than it states.")


def _check_counts(facts: Facts, path: Path) -> None:
    """Check that there are no more rounds and looks, and no other task, than were proposed.

    Raises:
        DossierError: there are.
    """
    asked, looks = facts.proposal, facts.proposal.evaluation
    listed = facts.evaluation.looks
    for what, stated, most in (
        ("rounds", facts.rounds, asked.rounds),
        ("rounds of a site", max((one.rounds for one in facts.sites), default=0), facts.rounds),
        ("looks", len(listed), 0 if looks is None else looks.looks),
        ("looks of a site", max((one.looks for one in facts.sites), default=0), len(listed)),
    ):
        if stated > most:
            raise DossierError(f"{path}: counts {stated} {what}, but there can be at most {most}.")
    for one in listed:
        found = one.found
        answered = sum(site.status == "ok" for site in found.sites.values())
        stated_of = (found.counted, found.steps, found.share)
        if looks is None or stated_of != (answered, looks.slots, asked.privacy.sample_rate):
            raise DossierError(
                f"{path}: the look after round {one.round} is said to be of {found.counted} sites,"
                f" {found.steps} steps and a share of {found.share:g}. That is not what was"
                " proposed and answered."
            )
    if facts.task != asked.model.task:
        raise DossierError(
            f"{path}: its task is {facts.task}, and its proposal's {asked.model.task}."
        )


def _check_sites(contents: Contents, path: Path, given: Given) -> Iterator[Finding]:
    facts, ledgers = contents.facts, dict[str, str]()
    for name in given.sites.keys() - contents.reports.keys():
        problem = "is of no site that has a report in the dossier"
        fix = f"There are reports of {', '.join(contents.reports) or 'nobody'}."
        raise ConfigError(problem, key="--site", value=name, fix=fix)
    if given.third is None:
        yield left_open(
            "that dp-accounting comes to the same: it is not installed (the extra `verify`), so the"
            " third check was not made"
        )
    for site in facts.sites:
        report = contents.reports.get(site.name)
        if report is None:
            if site.rounds or site.looks:
                text = (
                    f"what it paid for {site.rounds} rounds: it sent no report, and nothing is"
                    " claimed for its people"
                )
                yield Finding("open", text, site.name)
            continue
        twin = ledgers.setdefault(report.dataset_id, site.name)
        if twin != site.name:
            raise ForkedError(
                f"{path}: {twin} and {site.name} report of one ledger, {report.dataset_id}: it is"
                " used in two copies, and neither knows what the other one paid."
            )
        rows, key = contents.rows.get(site.name), _key_of(site.name, given)
        said = Statement(path, facts, site, report, rows, key, given.third)
        yield from about(site.name, check_site(said))


def _key_of(site: str, given: Given) -> str | None:
    """Return the key that must have signed a site's report, if anybody named one."""
    named = None if given.roster is None else given.roster.key_of(site)
    return given.sites.get(site, named)


def _check_roster(facts: Facts, path: Path, roster: Roster | None) -> Iterator[Finding]:
    """Check that the roster of a secure sum is the one that was given."""
    shared = facts.proposal.shared
    if shared is None:
        return
    if roster is None:
        yield left_open(f"which sites may be in its sums: give --roster with {shared.roster}")
        return
    if roster.digest != shared.roster:
        raise SignerError(
            f"{path}: its sums are of the sites of the roster {shared.roster}, and the one that was"
            f" given is {roster.digest}. Sites of another roster may hold other keys."
        )
    yield holds(f"its sums are of the sites of the roster that was given, {roster.digest}")
    known, here = {one.name for one in roster.entries}, {site.name for site in facts.sites}
    if strange := sorted(here - known):
        raise SignerError(
            f"{path}: {strange[0]} is not in the roster of its sums, which nobody else can be in."
        )
    if missing := sorted(known - here):
        yield word(f"that {', '.join(missing)} of the roster took no part: the file has none of it")


def _people_in_several(contents: Contents) -> Iterator[Finding]:
    reports = list(contents.reports.values())
    if len(reports) > 1:
        total = received.totals(reports)
        yield holds(
            f"for a person with a unit in each of {len(reports)} sites, Σε ="
            f" {upper(total['epsilon'])} and Σδ = {small(total['delta'])}"
        )


def _words(contents: Contents) -> Iterator[Finding]:
    """Yield findings that rest on the coordinator's word, whatever a file shows."""
    facts, begin = contents.facts, contents.facts.proposal.begin_digest
    merged = begin is not None and facts.proposal.model.begin_as == "merged"
    base = f"{facts.base}, with the adapter {begin} merged into it" if merged else facts.base
    yield word("that the adapter is made of what the sites released, and of public records alone")
    yield word(f"that it is used with the base model {base}, of which it is no part")
    if begin is not None:
        yield word(
            f"that the adapter it began at, {begin}, was made of public data,"
            " or of what others paid for"
        )
    yield word("that no site took part but those that are named here")
    yield word("the names of job, model and engine, and when it ran")
    yield word("the scores, on records that nobody else has seen")
    yield word("which code ran: digests say what the coordinator had; each site runs its own")
    if facts.status != "finished" or facts.rounds < facts.proposal.rounds:
        yield word(f"that the job ended after {facts.rounds} of {facts.proposal.rounds} rounds")
