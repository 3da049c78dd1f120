"""`fedpriv roster`, as a coordinator and the administrators of sites use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedpriv.commands.roster import app
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.pki.points import in_groups
from fedpriv.secure_sum.roster import read, write
from fedpriv_client.cli import app as client
from tests.secure_sum.secure_sites import sites

SITES = sites("cardiology", "radiology", "surgery")


def roster(*arguments: str | Path) -> Result:
    """Run the command; an error on purpose is raised here."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, FedprivError):
        raise result.exception
    return result


@pytest.fixture
def entries(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{site.name}.roster.json" for site in SITES]
    for path, site in zip(paths, SITES, strict=True):
        write(path, site.entry)
    return paths


def test_a_roster_is_made_of_entries_and_shown(entries: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "roster.json"
    made = roster("make", *reversed(entries), "--out", out)
    shown = roster("show", out)
    assert made.exit_code == shown.exit_code == 0, made.output + shown.output
    assert f"Made {out} of 3 sites." in made.output
    assert [entry.name for entry in read(out).entries] == [site.name for site in SITES]
    for text in (made.output, shown.output):
        words = " ".join(text.replace("│", " ").split())
        assert f"Digest {read(out).digest}" in words
        assert "by telephone, not through the coordinator" in words
        assert "nobody compared counts towards max colluding" in words
        for site in SITES:
            groups = in_groups(site.entry.public_key).split()
            assert site.name in words and all(group in words for group in groups)


def test_a_site_that_has_no_other_part_can_show_it(entries: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "roster.json"
    roster("make", *entries, "--out", out)
    shown = CliRunner().invoke(client, ["roster", "show", str(out)])
    assert shown.exit_code == 0 and read(out).digest in shown.output


def test_it_is_shown_as_json(entries: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "roster.json"
    roster("make", *entries, "--out", out)
    assert json.loads(roster("show", out, "--json").output) == {
        "digest": read(out).digest,
        "fingerprints": {site.name: in_groups(site.entry.public_key) for site in SITES},
    }


def test_a_roster_that_is_there_stays(entries: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "roster.json"
    roster("make", *entries, "--out", out)
    before = out.read_bytes()
    with pytest.raises(ConfigError, match=r"roster\.json: is there already"):
        roster("make", *entries[:2], "--out", out)
    assert out.read_bytes() == before


def test_what_makes_no_roster_leaves_no_file(entries: list[Path], tmp_path: Path) -> None:
    out, damaged = tmp_path / "roster.json", tmp_path / "damaged.json"
    damaged.write_text('{"name": "x", "public_key": "00"}')
    for wrong, words in (
        (entries[:1], "of one site hides nothing"),
        ([entries[0], *entries], "the same name, cardiology"),
        ([*entries, damaged], r"damaged\.json: public_key: "),
        ([*entries, tmp_path / "none.json"], r"none\.json: no such file"),
    ):
        with pytest.raises(ConfigError, match=words):
            roster("make", *wrong, "--out", out)
    assert not out.exists()


def test_a_roster_follows_another_by_what_changes(entries: list[Path], tmp_path: Path) -> None:
    first, second = tmp_path / "roster.json", tmp_path / "roster-2.json"
    roster("make", *entries[:2], "--out", first)
    made = roster("make", entries[2], "--after", first, "--without", "radiology", "--out", second)
    assert read(second).predecessor == read(first).digest
    assert [entry.name for entry in read(second).entries] == ["cardiology", "surgery"]
    assert "radiology leaves" in made.output and "surgery joins" in made.output
    assert "fedpriv-client accept-roster" in made.output
