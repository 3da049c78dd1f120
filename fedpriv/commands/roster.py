"""`fedpriv roster …`: make the roster of the sites that may form secure sums, and show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from fedpriv.secure_sum.roster import Roster

app = typer.Typer(no_args_is_help=True, help="The sites of a secure sum, and their keys.")
ADVICE = (
    "The administrators of the sites compare these fingerprints with each other by telephone, not"
    " through the coordinator; an entry that nobody compared counts towards max colluding. It is"
    " enough that each finds the fingerprint of its own key here, and that all read out the same"
    " digest."
)


@app.command()
def make(
    entries: Annotated[
        list[Path] | None, typer.Argument(help="NAME.roster.json of each site, as it was sent.")
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="The roster's file; it may not be there.")],
    after: Annotated[
        Path | None,
        typer.Option(help="The roster that this one follows: name only what changes in it."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="With --after: a site that leaves. May repeat.")
    ] = None,
) -> None:
    """Make a roster of the entries that sites sent, to be handed to each of them."""
    from fedpriv.secure_sum.roster import Roster, changes, read, read_entry, successor, write

    named = [read_entry(path) for path in entries or ()]
    old = None if after is None else read(after)
    roster = Roster.of(named) if old is None else successor(old, named, without or ())
    if out.exists():
        fix = "Move it away, or name another file with --out."
        raise ConfigError("is there already", file=out, fix=fix)
    write(out, roster)
    print(f"Made {out} of {len(roster)} sites.")
    _show(roster)
    if old is not None:
        print("\n".join(changes(old, roster)))
        print("Each site in it says yes once: fedpriv-client accept-roster FILE.")


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="The roster's file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show the sites of a roster with the fingerprints of their keys, and its digest."""
    from fedpriv.pki.points import in_groups
    from fedpriv.secure_sum.roster import read

    roster = read(path)
    if as_json:
        prints = {entry.name: in_groups(entry.public_key) for entry in roster.entries}
        print(json.dumps({"digest": roster.digest, "fingerprints": prints}, indent=2))
    else:
        _show(roster)


def _show(roster: Roster) -> None:
    from fedpriv.pki.points import in_groups

    table = Table("site", "fingerprint of its key")
    for entry in roster.entries:
        table.add_row(entry.name, in_groups(entry.public_key))
    Console(highlight=False).print(table)
    print(f"Digest {roster.digest}\n{ADVICE}")
