"""`fedpriv init`: a federation to start your own from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from fedpriv.errors import RunError
from fedpriv.recipes import RECIPES, write_recipe


def init(
    folder: Annotated[Path, typer.Argument(help="New folder for the copy.")],
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Another example: {', '.join(RECIPES)}.")
    ] = None,
) -> None:
    """Copy the embedded clinics, their file and their notes, to start your own from."""
    from fedpriv.config.load import EMBEDDED

    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: is not empty. Name a new folder.")
    if recipe is not None:
        file = write_recipe(recipe, folder)
        print(f"Written. Read {folder / 'README.md'}, then:\n  fedpriv simulate {file}")
        return
    shutil.copytree(EMBEDDED.parent, folder, dirs_exist_ok=True)
    file = folder / EMBEDDED.name
    print(f"Copied. Edit {file}, then:\n  fedpriv simulate {file}")
