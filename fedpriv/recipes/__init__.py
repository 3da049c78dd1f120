"""Federations to start your own from: for each a file, small public data, and a page about it.

A recipe is one folder here. Its `federation.toml` and `README.md`, if it has them, are copied as
they are, and `write_records` writes the files beside them.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from importlib.resources import as_file, files
from pathlib import Path

from fedpriv.errors import ConfigError, did_you_mean

RECIPES = {
    "hospitals": "four hospitals, each of which adds all of its own noise",
    "classification": "which department a note is of, at three hospitals",
    "instruction": "a patient's instruction for a prescription (prompt and completion)",
    "omop": "notes by person from OMOP databases, at two hospitals",
}
COPIED = ("federation.toml", "README.md")


def write_recipe(name: str, folder: Path) -> Path:
    """Write a recipe's files into a new or empty folder, and return the path of its federation.

    Raises:
        ConfigError: there is no such recipe. The message names all recipes.
    """
    if name not in RECIPES:
        known = "; ".join(f"{known}: {about}" for known, about in RECIPES.items())
        fix = f"{did_you_mean(name, RECIPES)} There are {known}.".lstrip()
        raise ConfigError("no such recipe", key="--recipe", value=name, fix=fix)
    folder.mkdir(parents=True, exist_ok=True)
    for copied in COPIED:
        with as_file(files(f"{__package__}.{name}") / copied) as path:
            if path.is_file():
                shutil.copyfile(path, folder / copied)
    import_module(f"{__package__}.{name}").write_records(folder)
    return folder / COPIED[0]
