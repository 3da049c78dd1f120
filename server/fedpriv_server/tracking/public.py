"""What a tool is told about a run: its settings, and the figures of each round."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpriv.config.job import JobConfig
from fedpriv.config.load import NOT_OF_A_RUN
from fedpriv_server.run_directory import RunDirectory

LONGEST = 500  # characters of a setting; tools refuse longer ones
OF_A_SITE = ("size", "epsilon", "epsilon_alone")
Figures = dict[str, float]


def numbers_in(said: Mapping[str, Any]) -> Figures:
    """Return the numbers in nested tables, with names such as ``sites/north/epsilon_spent``."""
    leaves = ((name, x) for name, x in _leaves(said, "/") if not isinstance(x, bool))
    return {name: float(x) for name, x in leaves if isinstance(x, (int, float))}


def figures_of(row: Mapping[str, Any]) -> Figures:
    """Return the numbers in a round's line of metrics.jsonl, without the round's own."""
    return numbers_in({key: value for key, value in row.items() if key != "round"})


def settings_of(config: JobConfig, run: RunDirectory) -> dict[str, str]:
    """Return dotted name → value of a job's settings, and what they led to.

    No setting that gives an address is among them: no path, no host, no table of places.
    """
    said = config.model_dump(
        exclude={**NOT_OF_A_RUN, **dict.fromkeys(("server", "sites", "outside"), True)}
    )
    for key in ("name", "begin"):
        if (path := Path(said["model"][key] or "")).exists():
            said["model"][key] = path.name or None
    if said["synthetic"] is not None:
        said["synthetic"].pop("generator")
    said["sites"] = {
        one.name: {key: getattr(one, key) for key in OF_A_SITE} for one in config.sites
    }
    model = {key: x for key, x in run.info["model"].items() if key not in ("name", "folder")}
    said["run"] = {key: run.info[key] for key in ("config_digest", "versions")} | {"model": model}
    return {
        name: (value if isinstance(value, str) else json.dumps(value, default=str))[:LONGEST]
        for name, value in _leaves(said, ".")
        if value is not None and not isinstance(value, Path)
    }


def _leaves(value: Any, joined_by: str, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested tables and lists, each with the joined names that lead to it."""
    if joined_by == "/" and isinstance(value, (list, tuple)):
        value = {str(index): item for index, item in enumerate(value)}
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, item in value.items():
        yield from _leaves(item, joined_by, f"{name}{joined_by}{key}" if name else key)
