"""What a lasting coordinator reads of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.errors import ConfigError
from fedpriv_server.consortium import load_consortium

TEXT = """
[server]
address = "localhost:1"
pki = "keys"
[[sites]]
name = "a"
[[sites]]
name = "b"
"""


@pytest.mark.parametrize("further", ["", '[job]\nname = "notes"\n'])
def test_server_and_sites_are_all_that_it_needs(tmp_path: Path, further: str) -> None:
    file = tmp_path / "consortium.toml"
    file.write_text(TEXT + further)
    found = load_consortium(file)
    assert found.names == {"a", "b"} and found.server.pki == tmp_path / "keys"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("[server]", "[servers]", "server: is missing"), ('address = "localhost:1"', "", "address")],
)
def test_what_is_missing_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "consortium.toml"
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        load_consortium(file)
