"""`fedpriv export` and `fedpriv verify`: one file that shows what was spent, and its check."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedpriv.errors import ConfigError, FedprivError, RunError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fedpriv.dossier.findings import Finding

KEY = "dossier.key"  # a simulation's key, in its private folder
_MARKS = {"holds": "[green]✓[/]", "word": "[yellow]?[/]", "open": "[yellow]–[/]"}
_MEANS = "✓ holds by computation here. ? is only somebody's word. – could be checked, and was not."


def export(
    run: Annotated[Path, typer.Argument(help="Run directory whose job has ended.")],
    out: Annotated[Path, typer.Option(help="File to write; its page comes beside it, as .html.")],
    key: Annotated[
        Path | None,
        typer.Option(
            help="The coordinator's signing key, made if it is not there. A simulation has its own."
        ),
    ] = None,
    ledger: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FILE: a site's ledger, or what `fedpriv ledger export` wrote. May repeat."
        ),
    ] = None,
    without_reports: Annotated[
        bool, typer.Option("--without-reports", help="Sign it although a site's report is missing.")
    ] = False,
) -> None:
    """Write the dossier of a run: one signed file that anybody can check."""
    from fedpriv.dossier.export import export_run
    from fedpriv.pki.points import in_groups

    ledgers = {name: Path(file) for name, file in _pairs("--ledger", "FILE", ledger).items()}
    if not without_reports:
        _check_reports(run)
    signing_key = _signing_key(run, key)
    kinds = [finding.kind for finding in export_run(run, out, signing_key, ledgers)]
    public = in_groups(signing_key.public_key().public_bytes_raw().hex())
    print(
        f"Wrote {out}, and its page {out.with_suffix('.html')}.\n"
        f"Checked before it was written: {kinds.count('holds')} statements hold by computation,"
        f" {kinds.count('word')} are only somebody's word.\n"
        f"Signed by {public}: tell that to whoever checks it, by another way than the file.\n"
        f'  fedpriv verify {out} --signer "{public}"'
    )


def _check_reports(run: Path) -> None:
    """Refuse a run if the report of a site that took part is missing, as its costs would be.

    Raises:
        RunError: reports are missing; names the sites.
    """
    from fedpriv.report.rundir import read_run

    directory = read_run(run)
    looks = [row.held_out for row in directory.rounds if row.held_out]
    answered = [(name, site.status) for row in directory.rounds for name, site in row.sites.items()]
    answered += [(name, site.status) for look in looks for name, site in look.sites.items()]
    took_part = {name for name, status in answered if status == "ok"}
    late = {*directory.run.owed.get("reports", ())}  # their reports here are older
    if missing := took_part - {report.site for report in directory.reports} | late:
        raise RunError(
            f"{run}: the budget report of {', '.join(sorted(missing))} is missing, and the dossier"
            " would leave out what it spent. When the site is back, start the server again to fetch"
            " it; or give --without-reports."
        )


def _signing_key(run: Path, path: Path | None) -> Ed25519PrivateKey:
    """Return the key that signs: a simulation's own by default, else the coordinator's."""
    from fedpriv.pki.signing import load_or_create_key
    from fedpriv.report.rundir import read_run

    if path is None:
        if read_run(run).run.job.engine == "network":
            raise ConfigError(
                "has to be named for a job over the network",
                key="--key",
                fix="Such as --key federation/dossier.key: it is made if it is not there. Keep it"
                " with the federation's other keys, use it for every dossier, and tell the sites"
                " its public half.",
            )
        path = run / "private" / KEY
    return load_or_create_key(path)


def verify(
    path: Annotated[Path, typer.Argument(help="The dossier.")],
    signer: Annotated[
        str | None, typer.Option(metavar="KEY", help="Public key that must have signed it.")
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=KEY: public key that must have signed a site's report. May repeat."
        ),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="The roster of a secure sum, which names the sites' keys.")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="Folder of the adapter that it should be about.")
    ] = None,
    earlier: Annotated[
        Path | None, typer.Option(help="An older dossier, whose ledgers continue in this one.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="File to write the page to, as this fedpriv makes it, if all holds."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Check a dossier without a network, and say what holds and what is only somebody's word.

    The last line is the verdict. The exit code is 0 if all that the dossier states holds; 3 if
    another key signed; 4 if anything is not so; 2 if it can't be read.
    """
    from fedpriv.dossier.findings import verdict
    from fedpriv.dossier.verify import Given, own_page, verify_file
    from fedpriv.files import write_atomic
    from fedpriv.secure_sum.roster import read

    given = Given(
        signer=signer,
        sites=_pairs("--site", "KEY", site),
        roster=None if roster is None else read(roster),
        adapter=adapter,
        earlier=earlier,
    )
    found: list[Finding] = []
    try:
        with Console(stderr=True).status("Checking") as status:
            for finding in verify_file(path, given):
                status.update(f"Checking {escape(finding.site)}")
                found.append(finding)
        if page is not None:
            write_atomic(page, own_page(path, verdict(found, signer)))
    except FedprivError as error:
        error.verdict = "" if as_json else f"NOT VERIFIED: {path}"
        raise
    finally:
        if found and not as_json:
            _show(found)
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        print(f"{_MEANS}\n{verdict(found, signer)}")


def _show(found: list[Finding]) -> None:
    """Print the findings: first on the whole, then on the sites. Sites that are alike come once."""
    from fedpriv.dossier.findings import alike

    console = Console(highlight=False)
    general = [finding for finding in found if not finding.site]
    for keys, shared in [({"All of it": ""}, general), *alike(found)]:
        [*names] = keys
        title = names[0] if len(names) == 1 else f"{len(names)} sites, alike but for their keys"
        console.print(f"[bold]{escape(title)}[/]")
        for finding in shared:
            console.print(f"  {_MARKS[finding.kind]} {escape(finding.text)}.", soft_wrap=True)
        for name in names if len(names) > 1 else ():
            console.print(f"  KEY of {escape(name)}: {keys[name]}", soft_wrap=True)


def _pairs(option: str, value: str, given: list[str] | None) -> dict[str, str]:
    """Return the value of each NAME that was given as NAME=VALUE."""
    found = {}
    for text in given or []:
        name, equals, rest = text.partition("=")
        if not (name and equals and rest):
            fix = f"Such as {option} north={value}."
            raise ConfigError(f"is not NAME={value}", key=option, value=text, fix=fix)
        if name in found:
            raise ConfigError("is given twice for one site", key=option, value=name, fix="Choose.")
        found[name] = rest
    return found
