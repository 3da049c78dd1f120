"""Draft a site's own file. The coordinator fills in what it knows, the site adds the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import jinja2

from fedpriv.config.job import JobConfig


def site_file(config: JobConfig, name: str, address: str) -> str:
    """Return the text of ``site.toml`` for a site.

    Values that only its administrator can know are comments. So the file is refused until they
    are filled in.
    """
    base = Path(config.model.name)
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("fedpriv_server"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["toml"] = _toml
    return templates.get_template("site.toml").render(
        config=config,
        model=config.model,
        privacy=config.privacy,
        name=name,
        address=address,
        is_elsewhere=base.is_absolute(),  # a folder on the coordinator's machine
        folder=base.name,
    )


def _toml(value: object) -> str:
    """Return a value as it is written in a TOML file."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # TOML, unlike JSON, wants this character escaped
