#!/usr/bin/env python
"""Write docs/reference/configuration.md from the settings' own descriptions.

    python scripts/make_config_reference.py             # writes it
    python scripts/make_config_reference.py --check     # 1 if the file is not what would be written

Every table, key, type, default, bound and description is that of `fedpriv.config`; what a file
leaves out and the table of defaults fills in is shown as that table has it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
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

Every key of the two files that people write. A key that is not listed is refused, and so is a
value outside its bounds, with the name of the file, the key, the value and what to do. Paths are
relative to the file that names them. Words of our own are in the [glossary](glossary.md).

- [The federation file](#the-federation-file) is the coordinator's: for `fedpriv simulate`,
  `fedpriv compare` and `fedpriv-server`. On the command line, `--set table.key=value` takes the
  place of what the file says; of a site, it is `--set sites.NAME.key=value`.
- [The site's file](#the-sites-file) is the hospital's: for `fedpriv-client`. Nothing that a server
  sends changes any of it.
"""
FEDERATION = """\
## The federation file

A complete one is [`federation.toml`](../../fedpriv/assets/clinics/federation.toml). It needs
`[job]` with `rounds`, `[evaluation]` with `data`, and one `[[sites]]` or more; all else may be left
out.

Five settings go with the task and the size of the base model: where a file leaves them out, they
come from this table, by the number of the model's parameters{by_epsilon}. `fedpriv plan` prints it,
and [results](../results.md#defaults) says what each row rests on. Where the size can't be told, as
the model has no safetensors, they have to be written down.

{table}
"""
SITE = """\
## The site's file

`fedpriv provision` drafts it, with the lines that the hospital has to fill in marked by `#!`
([network](../how-to/network.md#from-nothing-to-a-running-job)). It has the tables `[site]`,
`[server]`, `[data]`, `[budget]` and `[allow]`; `[compute]` may be left out, and its `gpus_per_site`
and `workers` are for simulations.
"""
NAMES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}
DURATIONS = ("job.round_timeout", "server.wait")


def page() -> str:
    """Write the whole page."""
    federation = FEDERATION.format(table=_table_of_defaults(), by_epsilon=_by_epsilon())
    parts = [HEAD, federation, *_tables(JobConfig, KEYS), SITE, *_tables(OwnSiteFile, {})]
    return "\n".join(parts)


def _by_epsilon() -> str:
    sizes = {(row.labels, row.parameters) for row in TABLE}
    return " and the job's ε" if len(sizes) < len(TABLE) else ""


def _table_of_defaults() -> str:
    keys = [f"{table}.{key}" for key, table in KEYS.items()]
    lines = [f"| base model | {' | '.join(f'`{key}`' for key in keys)} |", "|---" * 6 + "|"]
    for row in TABLE:
        values = " | ".join(_number(getattr(row, key)) for key in KEYS)
        task = "classifier" if row.labels else "language model"
        size = f"{_size(row.parameters)}{_from_epsilon(row.epsilon)}"
        lines.append(f"| {task}, {size} | {values} |")
    return "\n".join(lines)


def _size(parameters: float | None) -> str:
    return "larger" if parameters is None else f"up to {parameters / 1e6:g} million parameters"


def _from_epsilon(epsilon: float) -> str:
    return f", ε of {epsilon:g} and more" if _by_epsilon() else ""


def _tables(kind: type[BaseModel], by_size: Mapping[str, str]) -> Iterator[str]:
    """Write each table of a file as a heading, what it is for, and its keys."""
    schema = kind.model_json_schema()
    definitions, needed = schema["$defs"], schema.get("required", [])
    shown: dict[int, str] = {}
    for name, property_ in schema["properties"].items():
        yield from _table(name, property_, definitions, name in needed, by_size, shown)


def _table(
    name: str,
    schema: Schema,
    definitions: Schema,
    needed: bool,
    by_size: Mapping[str, str],
    shown: dict[int, str],
) -> Iterator[str]:
    section, many = _section(schema, definitions), schema.get("type") == "array"
    heading = f"### `[[{name}]]`" if many else f"### `[{name}]`"
    if section is None:  # a table whose keys somebody else knows
        yield f"{heading}\n\n{_plain(schema.get('description', ''))}\n"
        return
    before = shown.setdefault(id(section), name)
    if before != name:
        yield f"{heading}\n\nIts keys are those of `[{before}]`.\n"
        return
    about = " ".join(section.get("description", "").split())
    nested = {
        key: value
        for key, value in section["properties"].items()
        if _section(value, definitions) is not None
    }
    lines = [
        heading,
        "",
        _plain(about),
        "",
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for key, value in section["properties"].items():
        if key not in nested:
            default = _default(value, key in section.get("required", ()))
            if by_size.get(key) == name:
                default = "by task" if key == "clip_norm" else "by task and size"
            kind = _kind(value) if f"{name}.{key}" not in DURATIONS else "duration"
            meaning = value.get("description", "")
            lines.append(f"| `{key}` | {kind} | {default} | {_plain(meaning)} |")
    yield "\n".join(lines) + "\n"
    for key, value in nested.items():
        yield from _table(f"{name}.{key}", value, definitions, False, by_size, shown)


def _section(schema: Schema, definitions: Schema) -> Any:
    """Return the definition of the table that a property is, or None."""
    options = [schema, schema.get("items", {}), *schema.get("anyOf", ())]
    for option in options:
        if "$ref" in option:
            return definitions[option["$ref"].rpartition("/")[2]]
    return None


def _kind(schema: Schema) -> str:
    """Describe in words the type of a key with its bounds."""
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
        return f"from {_number(schema['minimum'])} to {_number(schema['maximum'])}"
    lower = [f"from {_number(schema['minimum'])}"] if "minimum" in schema else []
    lower += (
        [f"above {_number(schema['exclusiveMinimum'])}"] if "exclusiveMinimum" in schema else []
    )
    upper = [f"up to {_number(schema['maximum'])}"] if "maximum" in schema else []
    upper += (
        [f"below {_number(schema['exclusiveMaximum'])}"] if "exclusiveMaximum" in schema else []
    )
    return " and ".join(lower + upper)


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
