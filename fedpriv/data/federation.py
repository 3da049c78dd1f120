"""Write data sets in memory as the folder of a federation to simulate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field

from fedpriv.arguments import PathName, checked
from fedpriv.config.load import load_job
from fedpriv.data.in_memory import IN_MEMORY, KEY, OF_COLUMNS, Records, columns_of, rows_of
from fedpriv.data.values import OddValueError, as_id, as_json
from fedpriv.errors import ConfigError, DataError, RunError
from fedpriv.files import canonical_json, replacing_folder

Values = Mapping[str, Any]
FILE, EVALUATION = "federation.toml", "evaluation.jsonl"
MAX_SITES = 100_000
WRITTEN = ("name", "data")  # keys of a site that come from the records


@checked
def write_federation(
    folder: PathName,
    records: Records | Mapping[str, Records],
    public: Records | None = None,
    *,
    sites: Annotated[int, Field(ge=1, le=MAX_SITES)]
    | Mapping[str, Mapping[str, Any]]
    | Sequence[str]
    | None = None,
    size: int | Mapping[str, int] | None = None,
    columns: Mapping[str, str] | None = None,
    evaluation: Records | Mapping[str, Any] | None = None,
    outside: Mapping[str, Records] | None = None,
    **tables: Mapping[str, Any],
) -> Path:
    """Write a federation file and the records of its sites, as `fedpriv simulate` reads them.

    Args:
        folder: a new folder. Only its owner may read it, because it holds the records in clear.
        records: a data set for each site, by its name; or one, which is divided among `sites`.
            All records of a unit go to one site, chosen by a hash of the unit alone. A data set is
            whatever `PrivateStep` takes: rows, columns, a data frame, one of `datasets`.
        public: public records, or the coordinator's own, by which models are measured.
        sites: the number of sites or their names, if `records` is one data set; or the further keys
            of each, such as ``sites={"north": {"epsilon": 2}}``.
        size: declared number of units of each site, which is public and so never counted, unless
            ``job={"data_is_public": True}`` says that everything is.
        columns: from text, label, prompt, completion, messages to the names of your columns.
        evaluation: the table of that name, such as ``evaluation={"every": 5}``; or, without
            `public`, these records.
        outside: a data set for each site that takes no part, by its name.
        tables: those of the federation file, such as ``job={"rounds": 20}``,
            ``privacy={"epsilon": 4}``. A `Path` in one is relative to where you are, a text to the
            new folder.

    Returns:
        The path of the file.

    Raises:
        ConfigError: a table is not valid. The error names key and value. Nothing was written.
        DataError: records can't be used. The error never quotes one.
        RunError: the folder is not empty, or can't be written.

    Privacy:
        Writes private records, in clear, on this machine. Which site a unit goes to depends on that
        unit alone.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder}: is not empty. Name a new folder.")
    if public is None and not isinstance(evaluation, Mapping):
        public, evaluation = evaluation, None
    if isinstance(evaluation, Mapping):
        tables["evaluation"] = evaluation
    elif evaluation is not None:
        kind, fix = type(evaluation).__name__, "a table of the federation file, such as"
        problem = f"is a {kind}, and records to measure models by were given"
        raise ConfigError(problem, key="evaluation", fix=f'It is {fix} {{"every": 5}}.')
    keys = sites if isinstance(sites, Mapping) else {}
    for where, table, key, argument in (
        ("data", tables.get("data", {}), "columns", "columns"),
        ("evaluation", tables.get("evaluation", {}), "data", "public"),
        *((f"sites.{site}", own, one, "records") for site, own in keys.items() for one in WRITTEN),
    ):
        if key in table:
            fix = f"Give {argument}."
            raise ConfigError("is a separate argument", key=f"{where}.{key}", fix=fix)
    if public is None:
        raise ConfigError("is missing", key="public", fix="Give records to measure models by.")
    parts: Any = records if isinstance(records, Mapping) else None
    _check_sites(parts, sites)
    named = columns or columns_of(records if parts is None else next(iter(parts.values())))
    unit = str(tables.get("privacy", {}).get("unit", "record"))
    wanted = list(dict.fromkeys([*named.values(), *([] if unit == "record" else [unit])]))
    if parts is None:
        divided = _divided(records, sites, wanted, unit)
    else:
        divided = {name: _rows(own, wanted, unit) for name, own in parts.items()}
    apart = {name: _rows(own, wanted, unit) for name, own in (outside or {}).items()}
    counted = tables.get("job", {}).get("data_is_public") is True
    tree: dict[str, Any] = {
        **tables,
        "job": {"name": folder.name, **tables.get("job", {})},
        "data": {**tables.get("data", {}), "columns": named},
        "evaluation": {**tables.get("evaluation", {}), "data": EVALUATION},
        "sites": [],
    }
    for name, rows in divided.items():
        own = keys.get(name, {})
        units = _declared(name, rows, own.get("size", size), unit, public=counted)
        tree["sites"].append({**own, "name": name, "data": f"{name}.jsonl", "size": units})
    if apart:
        tree["outside"] = [{"name": name, "data": f"{name}.jsonl"} for name in apart]
    text = _toml(tree)
    try:
        with replacing_folder(folder) as made:
            (made / FILE).write_text(text, encoding="utf-8")
            try:  # check before files are named after sites
                load_job(made / FILE)
            except ConfigError as error:
                raise error.but(file=folder / FILE) from None
            for name, rows in (divided | apart).items():
                _write(made / f"{name}.jsonl", rows)
            _write(made / EVALUATION, _rows(public, [*named.values()], "record"))
    except OSError as error:
        raise RunError(f"{folder}: can't be written: {error.strerror}. Name another.") from None
    return folder / FILE


def _toml(tree: Mapping[str, Any]) -> str:
    """Return the text of a TOML file. Keys whose value is None are left out.

    Raises:
        ConfigError: a value is of a type that TOML does not have.
    """
    try:
        text = tomli_w.dumps(_plain(tree))
        text.encode()
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        fix = "Use texts, numbers, true and false, lists, and dictionaries with names as keys."
        raise ConfigError(f"hold what a file can't ({error})", key="tables", fix=fix) from None
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value.absolute()) if isinstance(value, Path) else value


def _check_sites(named: Any, sites: Any) -> None:
    """Check that the sites are said exactly once, by the records or by `sites`.

    Args:
        named: each site's records by its name, if the records are given so.

    Raises:
        ConfigError: neither says which sites there are, or both do, or a name has no records or
            comes twice.
    """
    if named is not None:
        if hasattr(named, "column_names"):
            problem = "are the splits of a data set, and a test split is no site"
            fix = 'Give one of them, or name the sites: {"north": …, "south": …}.'
            raise ConfigError(problem, key=KEY, value=list(named), fix=fix)
        if sites is not None and not isinstance(sites, Mapping):
            problem, fix = "are named by the records already", f"Leave it out. {OF_COLUMNS}"
            raise ConfigError(problem, key="sites", value=sites, fix=fix)
        if unknown := [name for name in sites or () if name not in named]:
            raise ConfigError("have no records", key="sites", value=unknown)
        sites = list(named)
    if not sites:
        fix = "Say among how many to divide the records."
        raise ConfigError("is missing", key="sites", value=sites, fix=fix)
    if not isinstance(sites, int) and len(set(sites)) < len(sites):
        raise ConfigError("name one site twice", key="sites", value=sites, fix="Name each once.")


def _divided(
    records: Any, sites: int | Iterable[str] | None, wanted: Sequence[str], unit: str
) -> dict[str, list[Values]]:
    """Divide one data set among sites: return the rows of each."""
    if isinstance(sites, int):
        sites = [f"site-{n}" for n in range(1, sites + 1)]
    names = list(sites or ())
    divided: dict[str, list[Values]] = {name: [] for name in names}
    for row in _rows(records, wanted, unit):
        owner = canonical_json(row) if unit == "record" else row[unit].encode()
        drawn = int.from_bytes(hashlib.sha256(b"site\0" + owner).digest()[:8])
        divided[names[drawn % len(names)]].append(row)
    return divided


def _rows(records: Records, wanted: Sequence[str], unit: str) -> list[Values]:
    """Return the rows with the columns that are used, as JSON values.

    Raises:
        DataError: one is missing, or holds what readers of files refuse.
    """
    rows: list[Values] = []
    for row, place, _ in rows_of(records, KEY):
        missing = [column for column in wanted if column not in row]
        if missing:
            fix = f"Its columns are {', '.join(map(str, row))}."
            raise DataError(f"{place} has no such column", key=KEY, value=missing[0], fix=fix)
        found: dict[str, Any] = {}
        for column in wanted:
            is_id = column == unit != "record"
            try:
                found[column] = as_id(row[column]) if is_id else _json(row[column])
            except OddValueError as error:
                raise DataError(
                    f"{place} {error}", file=IN_MEMORY, key=KEY, value=column, fix=error.fix
                ) from None
        rows.append(found)
    return rows


def _json(value: Any) -> Any:
    """Return a value as JSON has it. NaN and infinity become None."""
    return json.loads(as_json(value), parse_constant=lambda _: None)


def _declared(
    name: str,
    rows: Sequence[Values],
    size: int | Mapping[str, int] | None,
    unit: str,
    *,
    public: bool,
) -> int:
    stated = size.get(name) if isinstance(size, Mapping) else size
    if stated is not None:
        return stated
    if not public:
        fix = "Type a number of units. It is public, and a count of private records would tell that"
        fix += " somebody is among them."
        raise ConfigError(f"is missing for {name}", key="size", fix=fix)
    return len(rows) if unit == "record" else len({row[unit] for row in rows})


def _write(path: Path, rows: Iterable[Values]) -> None:
    with path.open("w", encoding="utf-8", errors="replace") as stream:  # for half a surrogate
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
