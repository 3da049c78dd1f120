"""What a setting has loaded: found by its name, named if it is missing, loaded by no other."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from trusted_path import BY_NAME, BY_SETTING, SERVING, reached

from fedpriv.errors import ConfigError
from fedpriv.plugins import PARTS, SOURCES, installed, load, load_part

ROOT = Path(__file__).parents[1]
GROUPS = {
    file: tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]["entry-points"]
    for file in ("pyproject.toml", "client/pyproject.toml")
}


@pytest.mark.parametrize("group", [PARTS, SOURCES])
def test_a_site_has_the_parts_that_the_whole_has(group: str) -> None:
    whole, site = (groups[group] for groups in GROUPS.values())
    assert site == whole
    assert installed(group) == sorted(whole)
    assert all(load(group, name, key="k") is not None for name in whole)


def test_a_coordinator_has_parts_of_the_whole_alone() -> None:
    whole = GROUPS["pyproject.toml"]
    file = ROOT / "server" / "pyproject.toml"
    of_server = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["entry-points"]
    for group in (PARTS, SOURCES):
        assert of_server[group].items() <= whole[group].items()


def test_what_a_setting_has_loaded_is_reached_by_no_other_way() -> None:
    serving = reached(*SERVING, *BY_NAME)
    groups = [GROUPS["client/pyproject.toml"][group] for group in BY_SETTING]
    targets = {target.partition(":")[0] for group in groups for target in group.values()}
    assert not targets & serving


def test_a_part_that_is_not_installed_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"compute\.magic: is not installed.*compute\.devices"):
        load_part("compute.magic")


def test_where_a_group_has_no_name_the_whole_package_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of the server's halves in a site's own package, or of all where PYTHONPATH alone is."""
    monkeypatch.setattr("fedpriv.plugins.entry_points", lambda **_: [])
    with pytest.raises(ConfigError, match="Install the whole package: fedpriv"):
        load(PARTS, "files.alone", key="files.alone")


def test_a_name_that_two_packages_have_is_taken_of_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def twice(**of: str) -> list[EntryPoint]:
        return [EntryPoint(value=value, **of) for value in ("ours:A", "theirs:A", "ours:A")]

    monkeypatch.setattr("fedpriv.plugins.entry_points", twice)
    with pytest.raises(ConfigError, match=r"two packages \(ours:A and theirs:A\)"):
        load(PARTS, "compute.of_two", key="compute.of_two")
