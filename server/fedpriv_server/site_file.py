"""Draft a site's own file. The coordinator fills in what it knows, the site adds the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from string import Template

from fedpriv.config.job import JobConfig

_TEMPLATE = Path(__file__).parent / "templates" / "site.toml"
_BEGIN = """\
# The adapter that the job begins at, where you have it, and its digest, as fedpriv-client digest
# prints it.
#! begin = "adapter"
#! begin_digest = "sha256:..."
"""


def site_file(config: JobConfig, name: str, address: str) -> str:
    """Return the text of ``site.toml`` for a site.

    Values that only its administrator can know are comments. So the file is refused until they
    are filled in.
    """
    model = config.model
    known = {
        "name": name,
        "address": address,
        "columns": config.data.columns,
        "unit": config.privacy.unit,
        "max_records_per_unit": config.privacy.max_records_per_unit,
        "delta": config.privacy.delta,
        "epsilon": config.privacy.epsilon,
        "method": config.job.method,
        "sample_rate": config.privacy.sample_rate,
        "steps": config.slots,
        "max_length": model.max_length,
        "r": config.lora.r,
        "colluding": 1 if config.max_colluding is None else config.max_colluding,
    }
    is_elsewhere = Path(model.name).is_absolute()  # a folder on the coordinator's machine
    where = Path(model.name).name if is_elsewhere else model.name
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        {key: _toml(value) for key, value in known.items()},
        labels=f"labels = {_toml(model.labels)}\n" if model.labels else "",
        model=f"{'#! ' if is_elsewhere else ''}model = {_toml(where)}",
        begin="" if model.begin is None else _BEGIN,
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
