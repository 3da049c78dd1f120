#!/usr/bin/env python
"""Write docs/reference/configuration.md from the settings' own descriptions.

    python scripts/make_config_reference.py             # writes it
    python scripts/make_config_reference.py --check     # 1 if the file is not what would be written

Every table, key, type, default, bound and description is that of `fedpriv.config`. What a file
leaves out and the table of defaults fills in is shown as that table has it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from written_page import write_or_check

from fedpriv.config.job import JobConfig
from fedpriv.config.personal import OwnSiteFile
from fedpriv.defaults import KEYS, TABLE

PAGE = Path(__file__).parents[1] / "docs/reference/configuration.md"
Schema = Mapping[str, Any]
HEAD = """\
# Configuration

<!-- Written by scripts/make_config_reference.py from fedpriv/config: change the texts there. -->

This page lists every key of the two files that people write. fedpriv refuses unknown keys and
values outside their bounds; the message says what to do. Paths are relative to the file that names
them. The [glossary](glossary.md) explains our own words.

- [The federation file](#the-federation-file) is the coordinator's: for `fedpriv simulate`,
  `fedpriv compare` and `fedpriv-server`. The option `--set table.key=value` overrides the file; for
  a site, `--set sites.NAME.key=value`.
- [The site's file](#the-sites-file) is the hospital's: for `fedpriv-client`. Nothing that a server
  sends changes it.
"""
FEDERATION = """\
## The federation file

An example is [`federation.toml`](../../fedpriv/assets/clinics/federation.toml). It needs
`[job]` with `rounds`, `[evaluation]` with `data`, and one or more `[[sites]]`.

Five defaults depend on the model's task and number of parameters{by_epsilon}. `fedpriv plan` prints
them; [results](../results.md#defaults) gives the evidence. If the model has no safetensors, fedpriv
can't tell its size: state the five.

{table}
"""
SITE = """\
## The site's file

`fedpriv provision` drafts it and marks with `#!` the lines that the hospital fills in
([network](../how-to/network.md#from-nothing-to-a-running-job)). It needs `[site]`, `[server]`,
`[data]`, `[budget]` and `[allow]`. `gpus_per_site` and `workers` of `[compute]` are for simulations
only.
"""
NAMES = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
}
DURATIONS = ("job.round_timeout", "server.wait")


@dataclass(frozen=True)
class Shown:
    """Hold what earlier tables have shown.

    Attributes:
        tables: a link to each table, by the title of its section.
        rows: the title of the section of each row.
    """

    tables: dict[str, str]
    rows: dict[str, str]


def page() -> str:
    """Return the whole page."""
    federation = FEDERATION.format(table=_table_of_defaults(), by_epsilon=_by_epsilon())
    shown = Shown({}, {})
    parts = [HEAD, federation, *_tables(JobConfig, KEYS, shown)]
    for title, link in shown.tables.items():
        shown.tables[title] = f"the federation file's {link}"
    parts += [SITE, *_tables(OwnSiteFile, {}, shown)]
    return "\n".join(parts)


def _by_epsilon() -> str:
    sizes = {(row.labels, row.parameters) for row in TABLE}
    return " and the job's ε" if len(sizes) < len(TABLE) else ""


def _table_of_defaults() -> str:
    keys = [f"{table}.{key}" for key, table in KEYS.items()]
    lines = [
        f"| base model, parameters | {' | '.join(f'`{key}`' for key in keys)} |",
        "|---" * 6 + "|",
    ]
    for row in TABLE:
        values = " | ".join(_number(getattr(row, key)) for key in KEYS)
        task = "classifier" if row.labels else "language model"
        size = f"{_size(row.parameters)}{_from_epsilon(row.epsilon)}"
        lines.append(f"| {task}, {size} | {values} |")
    return "\n".join(lines)


def _size(parameters: float | None) -> str:
    return "larger" if parameters is None else f"up to {parameters / 1e6:g} million"


def _from_epsilon(epsilon: float) -> str:
    return f", ε of {epsilon:g} and more" if _by_epsilon() else ""


def _tables(kind: type[BaseModel], by_size: Mapping[str, str], shown: Shown) -> Iterator[str]:
    """Yield each table of a file: a heading, its purpose and its keys."""
    schema = kind.model_json_schema()
    definitions, needed = schema["$defs"], schema.get("required", [])
    for name, property_ in schema["properties"].items():
        yield from _table(name, property_, definitions, name in needed, by_size, shown)


def _table(
    name: str,
    schema: Schema,
    definitions: Schema,
    needed: bool,
    by_size: Mapping[str, str],
    shown: Shown,
) -> Iterator[str]:
    section, many = _section(schema, definitions), schema.get("type") == "array"
    heading = f"### `[[{name}]]`" if many else f"### `[{name}]`"
    if section is None:  # a table whose keys are defined elsewhere
        yield f"{heading}\n\n{_plain(schema.get('description', ''))}\n"
        return
    title = section["title"]
    if title in shown.tables:
        yield f"{heading}\n\nIts keys are those of {shown.tables[title]}.\n"
        return
    shown.tables[title] = _link(heading)
    about = " ".join(section.get("description", "").split())
    nested = {
        key: value
        for key, value in section["properties"].items()
        if _section(value, definitions) is not None
    }
    lines = ["| key | type | default | meaning", "|---|---|---|---"]
    same: dict[str, list[str]] = {}
    for key, value in section["properties"].items():
        if key not in nested:
            default = _default(value, key in section.get("required", ()))
            if by_size.get(key) == name:
                default = "by task" if key == "clip_norm" else "by task and size"
            kind = _kind(value) if f"{name}.{key}" not in DURATIONS else "duration"
            row = f"| `{key}` | {kind} | {default} | {_plain(value.get('description', ''))}"
            if (before := shown.rows.setdefault(row, title)) == title:
                lines.append(row)
            else:
                same.setdefault(before, []).append(f"`{key}`")
    yield f"{heading}\n\n{_plain(about)}\n"
    for before, keys in same.items():
        those = " and ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))
        yield f"As in {shown.tables[before]}: {those}.\n"
    if len(lines) > 2:
        yield "\n".join(lines) + "\n"
    for key, value in nested.items():
        yield from _table(f"{name}.{key}", value, definitions, False, by_size, shown)


def _link(heading: str) -> str:
    """Return a link to the first table with a heading."""
    table = heading.removeprefix("### ").strip("`")
    return f"[`{table}`](#{re.sub(r'[^a-z_]', '', table)})"


def _section(schema: Schema, definitions: Schema) -> Any:
    """Return the definition of the table that a property is, or None if it is no table."""
    options = [schema, schema.get("items", {}), *schema.get("anyOf", ())]
    for option in options:
        if "$ref" in option:
            return definitions[option["$ref"].rpartition("/")[2]]
    return None


def _kind(schema: Schema) -> str:
    """Return the type of a key with its bounds, in words."""
    if "anyOf" in schema:
        kinds = [_kind(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema["type"] == "array":
        return _list(schema)
    if schema["type"] == "object":
        values = schema["additionalProperties"]
        return f"table of {_kind(values)}"
    if schema.get("format") in ("path", "date"):
        return str(schema["format"])
    return " ".join(filter(None, (NAMES[schema["type"]], _bounds(schema))))


def _list(schema: Schema) -> str:
    if "prefixItems" in schema:
        kinds = [_kind(item) for item in schema["prefixItems"]]
        return f"list of {len(kinds)}: {kinds[0]}"
    at_least = " (at least one)" if schema.get("minItems") else ""
    return f"list of {_kind(schema['items'])}{at_least}"


def _bounds(schema: Schema) -> str:
    if "minimum" in schema and "maximum" in schema:
        lowest, highest = schema["minimum"], schema["maximum"]
        to = "–" if lowest >= 0 else " to "
        return f"{_number(lowest)}{to}{_number(highest)}"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return ", ".join(
        f"{sign}{_number(schema[key])}" for key, sign in signs.items() if key in schema
    )


def _number(value: float) -> str:
    if value == 2**63 - 1:
        return "2⁶³ − 1"
    if isinstance(value, int):
        return f"{value:,}"
    return re.sub(r"e([+-])0?", lambda found: "e" + found[1].strip("+"), f"{value:g}")


def _default(schema: Schema, needed: bool) -> str:
    if needed:
        return "**needed**"
    value = schema.get("default")
    if value is None or value == [] or value == {}:
        return "–"
    if isinstance(value, Mapping):
        return "`{ " + ", ".join(f'{key} = "{item}"' for key, item in value.items()) + " }`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return ", ".join(f"`{item}`" if isinstance(item, str) else _number(item) for item in value)
    return f"`{value}`" if isinstance(value, str) else _number(value)


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), Path(__file__).name, __doc__))
