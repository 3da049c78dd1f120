"""`fedpriv adapter`: what a run made, as a folder for others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer


def adapter(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    out: Annotated[Path, typer.Option(help="New folder.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Write the model with the adapter merged into it.")
    ] = False,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        typer.Option(help="Of a merged model's weights.", show_default="the base model's"),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Hub name of a base model that the run had from a folder.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Where the base model is now, if the run had it elsewhere.")
    ] = None,
    license: Annotated[
        str | None, typer.Option(help="Identifier of the licence, for the card.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write the adapter of a run for others: safetensors, tokenizer, and a card on its privacy."""
    from fedpriv.hub.export import Wanted, export

    contents = export(run, out, Wanted(merge, dtype, base, license, model))
    if as_json:
        facts = {"folder": str(out), "merged": merge, "private": contents.private}
        print(json.dumps(facts | {"adapter": contents.weights_digest}, indent=2))
        return
    stamp = "" if contents.private else "NOT PRIVATE, for public data only. "
    print(f"{out}\n{stamp}Read {out / 'README.md'} before you hand it on.")
