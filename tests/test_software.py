"""Which code runs: told apart by a file, the same wherever it lies."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

from fedpriv import __version__
from fedpriv import software as module
from fedpriv.software import _digests, software


def test_ours_and_what_it_needs_are_in_it() -> None:
    found = software()
    assert next(iter(found)) == "fedpriv"
    assert found["fedpriv"].version == __version__
    assert {"torch", "flwr", "cryptography", "pydantic"} <= found.keys()
    assert found["torch"].version == distribution("torch").version
    assert all(one.digest is not None for one in found.values())
    assert not {"ray", "hypothesis", "dp-accounting"} & found.keys()  # of extras


def test_a_changed_file_has_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "made_up_package"
    package.mkdir()
    (package / "__init__.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = _digests("made_up_package")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_bytes(b"")
    assert _digests("made_up_package") == before
    (package / "__init__.py").write_text("A = 2\n")
    assert _digests("made_up_package") != before
    monkeypatch.setattr(module, "OURS", ("made_up_package",))
    software.cache_clear()
    one = software()["fedpriv"].digest
    (package / "__init__.py").write_text("A = 3\n")
    software.cache_clear()
    assert software()["fedpriv"].digest != one
    software.cache_clear()
    assert _digests("no_such_package_of_ours") == {}


def test_to_know_it_nothing_of_it_is_imported() -> None:
    code = (
        "import sys; from fedpriv.software import software; software()\n"
        "sys.exit(bool({'torch', 'flwr', 'fedpriv_client'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_all_that_is_installed_of_ours_is_in_its_digest() -> None:
    file = Path(__file__).parents[1] / "pyproject.toml"
    wheel = tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    packages = wheel["wheel"]["packages"]
    assert sorted(module.OURS) == sorted(Path(package).name for package in packages)
