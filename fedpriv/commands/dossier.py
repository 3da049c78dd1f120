"""`fedpriv export` and `fedpriv verify`: one file that shows what was spent, and its check."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fedpriv.dossier.findings import Finding

KEY = "dossier.key"  # of a simulation, in its private folder
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
) -> None:
    """Write the dossier of a run: one signed file that anybody can check."""
    from fedpriv.dossier.export import export_run
    from fedpriv.pki.points import in_groups

    ledgers = {name: Path(file) for name, file in _pairs("--ledger", "FILE", ledger).items()}
    signing_key = _signing_key(run, key)
    found = export_run(run, out, signing_key, ledgers)
    public = in_groups(signing_key.public_key().public_bytes_raw().hex())
    print(
        f"Wrote {out}, and its page {out.with_suffix('.html')}.\n"
        f"{_count(found)}\n"
        f"Signed by {public}: tell that to whoever checks it, by another way than the file.\n"
        f'  fedpriv verify {out} --signer "{public}"'
    )


def _count(found: Iterable[Finding]) -> str:
    kinds = [finding.kind for finding in found]
    return (
        f"Checked before it was written: {kinds.count('holds')} statements hold by computation,"
        f" {kinds.count('word')} are only somebody's word."
    )


def _signing_key(run: Path, path: Path | None) -> Ed25519PrivateKey:
    """The key that signs: of a simulation one of the run, else the coordinator's own."""
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
        str | None, typer.Option(metavar="KEY", help="Who has to have signed it.")
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="NAME=KEY: who has to have signed a site's report. May repeat."),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="The roster of a secure sum, which names the sites' keys.")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="Folder of the adapter that it should be about.")
    ] = None,
    earlier: Annotated[
        Path | None, typer.Option(help="An older dossier, whose ledgers go on in this one.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="File to write: its page, as this fedpriv makes it, once all holds."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Check a dossier without a network, and say what holds and what is only somebody's word.

    The exit code is 0 if all that it states holds; 3 if another key signed; 4 if anything is not
    so; 2 if it can't be read.
    """
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
    findings = verify_file(path, given)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    if page is not None:
        write_atomic(page, own_page(path))


def _show(findings: Iterable[Finding]) -> None:
    """Print each as it comes, those of a site under its name."""
    from rich.markup import escape

    console, at = Console(highlight=False), None
    for finding in findings:
        if finding.site != at:
            at = finding.site
            console.print(f"[bold]{escape(at) or 'All of it'}[/]")
        text = escape(f"{finding.text}.")
        console.print(f"  {_MARKS[finding.kind]} {text}", soft_wrap=True)
    console.print(_MEANS, soft_wrap=True)


def _pairs(option: str, value: str, given: list[str] | None) -> dict[str, str]:
    """NAME=VALUE, as often as it was given."""
    found = {}
    for text in given or []:
        name, equals, rest = text.partition("=")
        if not (name and equals and rest):
            raise ConfigError(
                f"is not NAME={value}",
                key=option,
                value=text,
                fix=f"Such as {option} north={value}.",
            )
        if name in found:
            raise ConfigError("is given twice for one site", key=option, value=name, fix="Choose.")
        found[name] = rest
    return found
