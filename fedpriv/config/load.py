"""Read a federation file or a site's: TOML, `--set` overrides, errors a person can act on.

What a federation file leaves out is filled in from the table of defaults.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

from pydantic import ValidationError

from fedpriv.arguments import PathName, checked
from fedpriv.config.ehr import SQLITE, OmopSection
from fedpriv.config.job import JobConfig, without_gone
from fedpriv.config.personal import OwnSiteFile
from fedpriv.config.sites import SiteRecords
from fedpriv.defaults import KEYS, defaults_for
from fedpriv.errors import ConfigError, did_you_mean, naming
from fedpriv.files import sha256
from fedpriv.model_size import parameters_of
from fedpriv.models.config import HUB_NAME, LoraSection
from fedpriv.names import DIGEST, HOST_PORT, NAME
from fedpriv.section import Section
from fedpriv.stored_adapter import find_adapter

ASSETS = Path(__file__).parent.parent / "assets"
EMBEDDED = ASSETS / "clinics" / "federation.toml"
HOSPITALS = ASSETS / "four_hospitals" / "federation.toml"
File = TypeVar("File", bound=Section)
# For `model_dump`: keys that are no part of a run's settings, such as when it may end.
NOT_OF_A_RUN: Any = {"tracking": True, "evaluation": {"stop_when_worse"}}
SHOWN = 8  # names in a message
OF_SITES = ("sites.", "outside.")  # keys of private records
IN_WORDS = {  # for each pattern, what is expected
    NAME: "letters, digits, '.', '_' and '-', such as st-mary",
    rf"^{HOST_PORT}$": "host:port, such as fed.example.org:8443",
    DIGEST: "sha256: and 64 hexadecimal digits",
}
_SECRET = re.compile(r"pas+w|pwd|secret", re.I)  # in the name of a key, known or not


@checked
def load_job(path: PathName | None = None, overrides: Sequence[str] = ()) -> JobConfig:
    """Load the job of a federation file, with absolute paths and the defaults for its model.

    Args:
        path: the TOML file; None is the embedded federation of small clinics.
        overrides: ``a.b=value`` texts, applied in order; a value is read as TOML, and as
            plain text where it is not. ``sites.0.epsilon`` and ``sites.NAME.epsilon`` both work.

    Raises:
        ConfigError: names the file, the key, the value and what to do.
    """
    path = EMBEDDED if path is None else Path(path)
    if "\n" in str(path):
        problem = "is the text of a file, where its name is expected"
        fix = "Write it to a file and name that, or use fedpriv.write_federation."
        raise ConfigError(problem, key="path", fix=fix)
    job = _found(_load(JobConfig, path, overrides), path)
    with naming(path):
        _check_public(job)
        return with_defaults(job)


def check_no_overrides(overrides: Sequence[str]) -> None:
    """Refuse overrides for a job that was made already.

    Raises:
        ConfigError: there are overrides.
    """
    if overrides:
        problem = "are for the keys of a file"
        fix = "Give them to load_job."
        raise ConfigError(problem, key="overrides", value=list(overrides), fix=fix)


def load_site(path: Path, overrides: Sequence[str] = ()) -> OwnSiteFile:
    """Load the settings of a site's own file, with its paths made absolute.

    Args:
        overrides: ``a.b=value`` texts, as for `load_job`.

    Raises:
        ConfigError: names the file, the key, the value and what to do.
    """
    file = _load(OwnSiteFile, path, overrides)
    data, allow = file.data, file.allow
    named = {"model": allow.model, "begin": allow.begin}
    found = {key: _model(path, f"allow.{key}", name) for key, name in named.items() if name}
    data = data.model_copy(update={"path": _source(path, "data.path", data.path)})
    return file.model_copy(update={"data": data, "allow": allow.model_copy(update=found)})


def _load(kind: type[File], path: Path, overrides: Sequence[str]) -> File:
    tree = read_toml(path)
    for override in overrides:
        apply_override(tree, override)
    if not tree:
        needed = (name for name, field in kind.model_fields.items() if field.is_required())
        fix = f"It needs at least {', '.join(f'[{name}]' for name in needed)}."
        raise ConfigError("is empty", file=path, fix=fix)
    try:
        with naming(path):
            _check_values(tree)
            return absolute(kind.model_validate(tree), path.resolve().parent)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise config_error(error, path, kind, tree) from None


def absolute(value: Any, folder: Path) -> Any:
    """Return the value with every relative path in it made absolute, from a folder."""
    match value:
        case Path():
            return folder / value
        case tuple():
            return tuple(absolute(item, folder) for item in value)
        case Section():
            changed = {key: new for key, old in value if (new := absolute(old, folder)) != old}
            if isinstance(value, OmopSection) and (file := SQLITE.fullmatch(value.url)):
                changed["url"] = f"{file[1]}{folder / file[2]}{file[3]}"
            return value.model_copy(update=changed)
        case _:
            return value


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a TOML file.

    Raises:
        ConfigError: it does not exist, can't be read, or is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = did_you_mean(path.name, [one.name for one in path.parent.glob("*.toml")])
        raise ConfigError("no such file", file=path, fix=near or "Check the path.") from None
    except UnicodeDecodeError:
        raise ConfigError("is not in UTF-8", file=path, fix="Save it as UTF-8.") from None
    except OSError as error:
        fix = "Name a file in it, such as federation.toml or site.toml." if path.is_dir() else ""
        raise ConfigError(f"can't be read: {error.strerror}", file=path, fix=fix) from None
    try:
        return _toml(text)
    except ValueError as error:
        fix = _advice(str(error), text)
        raise ConfigError(f"is not TOML: {error}", file=path, fix=fix) from None


def _advice(problem: str, text: str) -> str:
    """Suggest what may be wrong in the line of a TOML error."""
    if "overwrite" in problem or "twice" in problem:
        return "A key or a table stands there twice: remove one."
    found = re.search(r"at line (\d+)", problem)
    lines = text.splitlines()
    line = lines[int(found[1]) - 1] if found and int(found[1]) <= len(lines) else ""
    if re.search(r"=\s*[+-]?\d+,\d+\s*(#.*)?$", line):
        return f"Decimals have a point: {line.strip().replace(',', '.')}"
    if re.search(r"=\s*[A-Za-z/~.]", line):
        return "Put text in quotes."
    return ""


def _toml(text: str) -> dict[str, Any]:
    """Parse the tables of a TOML text.

    Raises:
        ValueError: it is not TOML, or has values that are too long or nested too deeply.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("a number has thousands of digits") from None
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _check_values(value: object, key: str = "") -> None:
    """Refuse texts with a NUL character, which no file name has, and integers beyond 64 bits."""
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_values(item, f"{key}.{name}".lstrip("."))
        return
    if isinstance(value, str) and "\0" in value:
        problem, fix = "holds a NUL character", "Take it out."
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        problem, fix = "is an integer of more than 64 bits", "Use a smaller one."
    else:
        return
    raise ConfigError(problem, key=key, value=value, fix=fix)


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set one dotted key of `tree` in place."""
    dotted, equals, text = override.partition("=")
    if not equals or not dotted.strip():
        fix = "Such as --set privacy.epsilon=4"
        raise ConfigError("expected KEY=VALUE", key="--set", value=override, fix=fix)
    *parents, last = dotted.strip().split(".")
    node: Any = tree
    for part in parents:
        node = _child(node, part, dotted)
    if not isinstance(node, dict):
        raise ConfigError("is not a table", key=f"--set {dotted}")
    node[last] = _value(text.strip())


def _child(node: Any, part: str, dotted: str) -> Any:
    if isinstance(node, dict):
        return node.setdefault(part, {})
    if not isinstance(node, list):
        raise ConfigError("is not a table", key=f"--set {dotted}")
    named = {str(item.get("name")): item for item in node if isinstance(item, dict)}
    known = {str(index): item for index, item in enumerate(node)} | named
    if part not in known:
        few = ", ".join([*named][:SHOWN]) + ("…" if len(named) > SHOWN else "")
        fix = did_you_mean(part, named) or f"There are {few}."
        raise ConfigError(f"there is no {part!r}", key=f"--set {dotted}", fix=fix)
    return known[part]


def _value(text: str) -> Any:
    try:
        return _toml(f"value = {text}")["value"]
    except ValueError:
        return text


def config_error(
    error: ValidationError, path: Path, root: type, tree: Mapping[str, Any] | None = None
) -> ConfigError:
    """Say a pydantic error's first problem as a person would; a misspelt key comes first.

    Args:
        tree: the content of the file, for the names of its sites.
    """
    found = error.errors(include_url=False)
    problem = min(found, key=lambda one: one["type"] != "extra_forbidden")
    location = [str(part) for part in problem["loc"] if not _KIND.match(str(part))]
    key = ".".join(_named(location, tree or {}))
    message, value = str(problem["msg"]), problem["input"]
    if location and (location[0] == "notify" or _SECRET.search(location[-1])):
        value = ...  # somebody may have typed it here
    if problem["type"] == "extra_forbidden":
        known = _known_keys(root, location[:-1])
        fix = did_you_mean(location[-1], known) or f"Known keys: {', '.join(known)}."
        return ConfigError("unknown key", file=path, key=key, value=value, fix=fix)
    if problem["type"] == "missing":
        return ConfigError("is missing", file=path, key=key, fix=_how_to_add(path))
    if problem["type"] == "string_pattern_mismatch":
        words = IN_WORDS.get(problem["ctx"]["pattern"])
        message = message if words is None else f"Expected {words}"
    if problem["type"] == "value_error":
        message = message.removeprefix("Value error, ")
        if isinstance(value, dict):  # a rule over several keys, which names them itself
            if not location and ": " in message:
                key, _, message = message.partition(": ")
                key = ".".join(_named(key.split("."), tree or {}))
            return ConfigError(message, file=path, key=key or None)
    return ConfigError(message[0].lower() + message[1:], file=path, key=key, value=value)


# Parts that pydantic adds to the keys of a location: for a key itself, or one of several types.
_KIND = re.compile(r"^(\[key\]|(constrained|function|is-instance|lax-or-strict)-?.*)$")


def _named(location: Sequence[str], tree: Any) -> Iterator[str]:
    """Yield the keys of a location. A table in a list is given by its name, not its number."""
    for part in location:
        is_listed = isinstance(tree, list) and part.isdigit() and int(part) < len(tree)
        tree = tree[int(part)] if is_listed else tree.get(part) if isinstance(tree, dict) else None
        name = tree.get("name") if is_listed and isinstance(tree, dict) else None
        yield name if isinstance(name, str) and re.fullmatch(NAME, name) else part


def _how_to_add(path: Path) -> str:
    """Say how to add a missing key to a file, which may be a draft with open lines."""
    with suppress(OSError, UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        if left := sum(line.startswith("#!") for line in lines):
            return f'{left} lines that begin with "#!" are not filled in: use fedpriv-client setup.'
    return "Add it to the file."


def _known_keys(model: Any, location: Iterable[str]) -> list[str]:
    """Return the keys of the table at `location`, for a suggestion."""
    for part in location:
        if part.isdigit():
            continue
        annotation: Any = model.model_fields[part].annotation
        model = next(iter(getattr(annotation, "__args__", ())), annotation)
    return list(getattr(model, "model_fields", {}))


def _found(job: JobConfig, path: Path) -> JobConfig:
    """Turn a job's names of existing files and folders into paths. Others are names at a hub."""

    def located(site: SiteRecords) -> SiteRecords:
        data = _source(path, f"{site.table}.{site.name}.data", site.data)
        return site.model_copy(update={"data": data})

    tables = {key: tuple(map(located, getattr(job, key))) for key in ("sites", "outside")}
    named = {"name": job.model.name, "begin": job.model.begin}
    found = {key: _model(path, f"model.{key}", name) for key, name in named.items() if name}
    model = job.model.model_copy(update=found)
    made_up = job.synthetic
    generator = made_up and made_up.generator
    if made_up and generator and generator.kind == "local":
        name = _model(path, "synthetic.generator.model", str(generator.model))
        generator = generator.model_copy(update={"model": name})
        made_up = made_up.model_copy(update={"generator": generator})
    return job.model_copy(update={**tables, "synthetic": made_up, "model": model})


def with_defaults(job: JobConfig) -> JobConfig:
    """Fill in every setting of the table of defaults that a job's file leaves out.

    Raises:
        ConfigError: the model's size can't be found, or the table has no learning rate for the
            optimiser; or the adapter that the job begins at is not as the file says, or can't be
            used.
    """
    if job.model.begin is not None and job.model.begin_as == "continued":
        job = _as_it_began(job, find_adapter(job.model.begin).lora)
    given = {table: getattr(job, table).model_fields_set for table in KEYS.values()}
    missing = [key for key, table in KEYS.items() if key not in given[table]]
    if not missing:
        return job
    if "lr" in missing and job.optimizer.name == "sgd":
        fix = "The table of defaults has rates for adamw only: write a rate down."
        raise ConfigError("is missing", key="optimizer.lr", fix=fix)
    parameters = parameters_of(job.model.name)
    if parameters is None:
        names = ", ".join(f"{KEYS[key]}.{key}" for key in missing)
        raise ConfigError(
            "has no safetensors here or at the hub, and without its size there are no defaults",
            key="model.name",
            value=job.model.name,
            fix=f"Correct it, or write down {names}.",
        )
    found = defaults_for(job.model.task == "classification", parameters, job.privacy.epsilon)
    row = {key: getattr(found, key) for key in KEYS}
    if "r" not in missing:  # the scale of the update, alpha / r, is what was measured
        row["alpha"] *= job.lora.r / row["r"]
    left_out: dict[str, dict[str, Any]] = {}
    for key in missing:
        left_out.setdefault(KEYS[key], {})[key] = row[key]
    sections = {t: getattr(job, t).model_copy(update=keys) for t, keys in left_out.items()}
    return job.model_copy(update=sections)


def _as_it_began(job: JobConfig, found: LoraSection) -> JobConfig:
    """Give the job the shape of the adapter that it continues. Its file may repeat that shape."""
    typed = {key: getattr(job.lora, key) for key in job.lora.model_fields_set}
    values = {key: value for key, value in found if key in found.model_fields_set}
    for key in values.keys() & typed.keys():
        is_other = typed[key] != values[key]
        if is_other and (key in KEYS or sorted(typed[key]) != sorted(values[key])):
            problem = f"is {values[key]} in the adapter that model.begin continues"
            fix = 'Leave it out; or merge that adapter, with model.begin_as = "merged".'
            raise ConfigError(problem, key=f"lora.{key}", value=typed[key], fix=fix)
    return job.model_copy(update={"lora": job.lora.model_copy(update=values)})


_USED = {
    "synthetic.data": "train on",
    "evaluation.tuning": "choose settings by",
}


def _check_public(job: JobConfig) -> None:
    """Refuse to choose settings by the reported records, and to use a site's records at all.

    If all data is public, a site's records may be used, but not training records to judge a model.
    Files are compared by where they really are, and a folder includes all that is in it.
    """
    files = {key: file.resolve() for key, file in job.files().items()}
    private = {key: file for key, file in files.items() if key.startswith(OF_SITES)}
    for key, file in files.items():
        if key in private:
            continue
        same = [site for site, own in private.items() if _share(file, own)]
        trains = [site for site in same if site[:6] == "sites." and not site.endswith(".held_out")]
        if same and not job.job.data_is_public:
            problem = f"is also {same[0]}; a loss on private records would be a release that nobody"
            problem, fix = f"{problem} paid for", "Name public records, or the coordinator's own."
        elif trains and key in job.evaluation.files():
            problem = f"is also {trains[0]}: no model can be judged on records that it trains on"
            fix = "Name other records."
        elif key in _USED and _share(file, files["evaluation.data"]):
            problem = f"would {_USED[key]} the records that are reported"
            fix = "Name other records."
        else:
            continue
        raise ConfigError(problem, key=key, value=file, fix=fix)


def _share(one: Path, other: Path) -> bool:
    nested = one.is_relative_to(other) or other.is_relative_to(one)
    return nested or not _linked(one).isdisjoint(_linked(other))


def _linked(path: Path) -> set[tuple[int, int]]:
    """Return those files at or in a path that have several names, each by disk and file number."""
    found = set()
    with suppress(OSError):  # missing or unreadable: the code that reads it will say so
        for file in (path, *path.rglob("*")):
            status = file.stat()
            if S_ISREG(status.st_mode) and status.st_nlink > 1:
                found.add((status.st_dev, status.st_ino))
    return found


def _model(file: Path, key: str, name: str) -> str:
    """Return the path of a folder beside the file, or else the name of a model elsewhere."""
    path = file.resolve().parent / name
    with _looking(file, key, name):
        return str(path) if path.is_dir() else name


def allowed_model(path: Path, key: str = "model") -> str | None:
    """Return a model that a site's file allows, even if other keys are still to be filled in.

    Args:
        key: a key of `[allow]`: ``model``, or ``begin`` for the adapter that a job may begin at.

    Raises:
        ConfigError: the file, or its value of the key, can't be read.
    """
    tree = read_toml(path)
    with naming(path):
        _check_values(tree)
    allow = tree.get("allow", {})
    name = allow.get(key, "embedded" if key == "model" else None) if isinstance(allow, dict) else 0
    if name is not None and not isinstance(name, str):
        raise ConfigError("is not the name of a model", file=path, key=f"allow.{key}", value=name)
    return name and _model(path, f"allow.{key}", name)


def _source(file: Path, key: str, data: Path | str | None) -> Path | str | None:
    """Return a path of the site, or the owner/name of a hub dataset if no such path exists."""
    if data is None:
        return None
    path = file.resolve().parent / data
    with _looking(file, key, data):
        is_hub_name = re.fullmatch(HUB_NAME, str(data)) and not path.exists()
    return str(data) if is_hub_name else path


@contextmanager
def _looking(file: Path, key: str, value: object) -> Iterator[None]:
    """Turn an error of the disk, while a path is looked for, into one that names the key."""
    try:
        yield
    except OSError as error:
        problem = f"can't be looked for: {error.strerror}"
        raise ConfigError(problem, file=file, key=key, value=value) from None


def settings_of(job: JobConfig) -> dict[str, Any]:
    """Return what makes a run, as JSON: the file without `NOT_OF_A_RUN`."""
    return job.model_dump(mode="json", exclude=NOT_OF_A_RUN)


def digest(job: JobConfig) -> str:
    """Return SHA-256 of `settings_of` a job, to tell one run's settings from another's."""
    return digest_of_record(settings_of(job))


def digest_of_record(settings: Any) -> str:
    """Return the digest of the settings that a run's record has, by whatever version.

    The engine "auto" counts as "fedpriv". A job that begins at no adapter has no key for one, as in
    older runs, which averaged nothing.
    """
    match settings := copy.deepcopy(without_gone(settings)):
        case {"job": dict(job), "model": dict(model), "compute": dict(compute)}:
            job.setdefault("average", 0.0)
            if compute.get("engine") == "auto":
                compute["engine"] = "fedpriv"
            if model.get("begin") is None:
                model.pop("begin", None)
                model.pop("begin_as", None)
    return sha256(json.dumps(settings, sort_keys=True).encode())
