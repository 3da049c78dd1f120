"""`fedpriv doctor` where only a part of fedpriv is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.commands import doctor
from fedpriv.errors import ConfigError


@pytest.mark.parametrize(("text", "role"), [("[site]", "site"), ("[job]", "federation")])
def test_a_file_of_a_part_that_is_not_here_is_refused(
    text: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "entry_points", lambda **_: ())
    (tmp_path / "file.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"file\.toml: .*the file of a {role}, and the package"):
        doctor.examine(tmp_path / "file.toml")
