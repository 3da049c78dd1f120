"""What is compared: a method, where its records are, and the settings to try."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedpriv.errors import ConfigError
from fedpriv.plugins import METHODS, installed

Place = Literal["federated", "pooled", "local"]
PUBLIC = {  # methods without noise, for public records alone
    "base": "the base model, not trained",
    "lora": "neither clipping nor noise",
    "lora-clipped": "clipping, no noise",
    "synthetic": "on the synthetic set alone, as it begins: no private record, ε = 0",
    "warm-start": "the base model after the set's warm start, where the others begin; ε = 0",
}
BASE = "base"
PERSONAL = "personal"  # what a site goes on to train
UNTRAINED = (BASE, "warm-start")  # trained in no step of the federation
ALONE = "lora-alone"  # each site trains the base model on its own records, without noise
SHORT = {
    "lr": "optimizer.lr",
    "clip_norm": "privacy.clip_norm",
    "sample_rate": "privacy.sample_rate",
    "optimizer": "optimizer.name",
    "schedule": "optimizer.schedule",
    "denoise": "denoise.where",
    "kappa": "denoise.kappa",
}
# Settings that would change what a row is measured on, or on which terms. The second kind may
# differ from row to row, for everyone to see. But a loss must not choose them.
OF_JOB = ("job.data_is_public", "job.engine", "job.method", "job.seed")
SAME = ("data.", "evaluation.", "sites", "outside", *OF_JOB)
TERMS = ("privacy.epsilon", "privacy.delta", "privacy.unit", "privacy.max_records_per_unit")
# Settings that a method without noise does not have.
OF_RELEASES = ("denoise.", "job.average", "privacy.normalise", "server_optimizer.")
OF_SETS, OF_WARMTH = "synthetic.", "synthetic.warm_start"
Settings = tuple[str, ...]  # KEY=VALUE overrides of the federation file
_COMMA = re.compile(r",(?![^\[]*\])")  # outside of a list


def listed(text: str) -> list[str]:
    """Split a command line's value at commas, except at commas inside a list."""
    return [part.strip() for part in _COMMA.split(text) if part.strip()]


@dataclass(frozen=True)
class Variant:
    """One row of a comparison.

    Attributes:
        name: the row's name, as it was asked for.
        method: a registered method, or a key of `PUBLIC`.
        place: who trains: all sites together, one party with all records, each site alone.
        personal: whether each site trains further on its own records, without noise.
        settings: settings that are fixed for this row.
        grid: settings to choose from. The best is reported.
    """

    name: str
    method: str
    place: Place
    personal: bool
    settings: Settings
    grid: tuple[Settings, ...]


def rows_of(methods: str, grids: Sequence[str]) -> list[Variant]:
    """Parse the rows that a command line asks for. `ALONE` also brings the base model's row.

    Raises:
        ConfigError: as for `parse_variants`.
    """
    names = listed(methods)
    if ALONE in names and BASE not in names:
        names = [BASE, *names]  # it is run for the other row anyway, and shows whether that helps
    return parse_variants(names, grids)


def parse_variants(names: Sequence[str], grids: Sequence[str]) -> list[Variant]:
    """Parse the rows of a comparison.

    Args:
        names: a text ``METHOD[-pooled|-local|+personal][:KEY=VALUE]…`` for each row.
        grids: texts ``[NAME:]KEY=VALUE,VALUE…``, each for one name or for all.

    Raises:
        ConfigError: a name is unknown or comes twice, or a grid is empty or names no row.
    """
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("comes twice", key="--methods", value=name, fix="Leave one out.")
    special = _parse_grids(grids, names)
    general, found = special.get("", {}), []
    for name in names:
        method, place, personal, settings = _parse_name(name)
        own = special.get(name, {})
        for key in own:
            if not _matters(method, personal, key):
                raise ConfigError(f"changes nothing for {method}", key="--grid", value=key)
        fixed = {setting.partition("=")[0] for setting in settings}
        tried = [
            [f"{key}={value}" for value in values]
            for key, values in {**general, **own}.items()
            if key not in fixed and _matters(method, personal, key)
        ]
        grid = tuple(itertools.product(*tried))
        found.append(Variant(name, method, place, personal, settings, grid))
    if not found:
        raise ConfigError("names no method", key="--methods", fix=f"Such as {', '.join(_known())}.")
    return found


def _parse_name(name: str) -> tuple[str, Place, bool, Settings]:
    method, *settings = name.split(":")
    place: Place = "federated"
    if method == ALONE:
        method = f"{BASE}+{PERSONAL}"
    method, _, way = method.partition("+")
    if way not in ("", PERSONAL):
        several = "fedpriv simulate --personal says what several models are worth together."
        problem, fix = (
            "is not a way for a site to train further by itself",
            f"Use +{PERSONAL}. {several}",
        )
        raise ConfigError(problem, key="--methods", value=name, fix=fix)
    if method.endswith("-pooled"):
        method, place = method.removesuffix("-pooled"), "pooled"
    elif method.endswith("-local"):
        method, place = method.removesuffix("-local"), "local"
    if method not in _known() or (place != "federated" and (method in PUBLIC or way)):
        ways = "each also with +personal, a private one with -pooled or -local."
        fix = f"Use {ALONE}, {', '.join(_known())}; {ways}"
        raise ConfigError(
            "is not a method that can be compared", key="--methods", value=name, fix=fix
        )
    for setting in settings:
        if "=" not in setting:
            raise ConfigError("expected KEY=VALUE", key=f"--methods {name}", value=setting)
        _check(_long(setting), SAME, "--methods")
    return method, place, bool(way), tuple(_long(setting) for setting in settings)


def _parse_grids(grids: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Return the values to try for each key, by the row's name. The empty name is for all rows."""
    found: dict[str, dict[str, list[str]]] = {}
    for grid in grids:
        owner, _, rest = grid.rpartition(":")
        key, equals, text = _long(rest).partition("=")
        values = listed(text)
        if not equals or not values:
            fix = "Such as --grid lr=1e-3,1e-2"
            raise ConfigError("is an empty grid", key="--grid", value=grid, fix=fix)
        if owner and owner not in names:
            problem = f"is for {owner!r}, which is not compared"
            fix = f"Use one of {', '.join(names)}."
            raise ConfigError(problem, key="--grid", value=grid, fix=fix)
        _check(key, SAME + TERMS, "--grid")
        own = found.setdefault(owner, {})
        own[key] = list(dict.fromkeys([*own.get(key, []), *values]))
    return found


def _check(setting: str, refused: tuple[str, ...], option: str) -> None:
    if setting.startswith(refused):
        fix = "For all rows alike, use --set."
        raise ConfigError("would compare what is not alike", key=option, value=setting, fix=fix)


def _matters(method: str, personal: bool, key: str) -> bool:
    """Tell whether a setting changes anything for a row. One that does not is not tried."""
    if key.startswith("personal."):
        return personal
    if personal and key.startswith(("model.", "lora.")):
        return True
    if method == "base" or (method in PUBLIC and key.startswith(OF_RELEASES)):
        return False
    if method == "warm-start":
        return key.startswith(("model.", "lora.", OF_SETS))
    if method == "synthetic":
        return not key.startswith(("privacy.", OF_WARMTH))
    if method in PUBLIC and key.startswith(OF_SETS):
        return key.startswith(OF_WARMTH)
    return not (method == "lora" and key == "privacy.clip_norm")


def _long(setting: str) -> str:
    key, equals, value = setting.partition("=")
    return f"{SHORT.get(key.strip(), key.strip())}{equals}{value}"


def _known() -> list[str]:
    return [*PUBLIC, *installed(METHODS)]
