"""When looks are due, how many units they divide by, and what a site's file has to say of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_site
from fedpriv.config.looks import LooksSection, held_out_units
from fedpriv.errors import ConfigError


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 60])
def test_looks_are_spread_evenly_and_the_last_is_after_the_last_round(rounds: int) -> None:
    for looks in range(1, rounds + 1):
        section = LooksSection(looks=looks)
        due = [section.due(number, rounds) for number in range(rounds + 1)]
        steps = [after - before for before, after in pairwise(due)]
        assert due[0] == 0 and due[-1] == looks and set(steps) <= {0, 1}
        at = [number for number in range(1, rounds + 1) if steps[number - 1]]
        assert at == [section.after(look, rounds) for look in range(1, looks + 1)]
        gaps = [after - before for before, after in zip([0, *at], at, strict=False)]
        assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    ("held_out", "size", "stated", "units"),
    [
        (None, 100, None, None),
        (0.2, 101, None, 20),
        (0.001, 100, None, 1),
        (Path("x.jsonl"), 100, None, None),
        (Path("x.jsonl"), 100, 30, 30),
    ],
)
def test_the_declared_number_is_that_of_settings(
    held_out: Any, size: int, stated: int | None, units: int | None
) -> None:
    assert held_out_units(held_out, size, stated) == units


SITE = """
[site]
name = "a"
[server]
address = "fed.example:1"
ca = "ca.crt"
key = "site.key"
[data]
path = "notes.jsonl"
size = 1000
{data}
[budget]
epsilon = 10.0
per_job = 4.0
delta = 1e-4
[allow]
model_digest = "sha256:{digest}"
{allow}
"""


def site(folder: Path, data: str = "", allow: str = "") -> Any:
    file = folder / "site.toml"
    file.write_text(SITE.format(data=data, allow=allow, digest="0" * 64))
    return load_site(file)


@pytest.mark.parametrize(
    ("data", "allow", "words"),
    [
        ("", "evaluation = true", "data.held_out: is missing"),
        ('held_out = "more.jsonl"', "evaluation = true", "data.held_out_size: is missing"),
        ("held_out = 0.2\nheld_out_size = 5", "", "data.held_out_size: belongs to a file"),
        ("held_out_size = 5", "", "data.held_out_size: belongs to a file"),
        ('held_out = "more.jsonl"\nheld_out_size = 9000', "", "held_out_size: δ = 0.0001"),
    ],
)
def test_statements_that_do_not_fit_are_named(
    tmp_path: Path, data: str, allow: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        site(tmp_path, data, allow)
    assert words in str(caught.value)


def test_looks_are_not_allowed_unless_a_site_says_so(tmp_path: Path) -> None:
    assert not site(tmp_path, "held_out = 0.2").allow.evaluation
    assert site(tmp_path, "held_out = 0.2", "evaluation = true").allow.evaluation
    typed = site(tmp_path, 'held_out = "more.jsonl"\nheld_out_size = 8000', "evaluation = true")
    assert typed.data.held_out == tmp_path / "more.jsonl"
