"""`scripts/try`: what a machine lacks for a first run is said in one sentence, at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Port 9 of this machine: nothing listens there, and pip is told of no other place.
NOWHERE = {"PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_CONFIG_FILE": os.devnull}


def tried(**environment: str) -> tuple[int, list[str]]:
    """The exit code of `scripts/try`, and the lines that it said."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    done = subprocess.run(
        [ROOT / "scripts" / "try"],
        env=kept | NOWHERE | environment,
        capture_output=True,
        text=True,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def program(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    # As an old one would: it exits with 1 if asked, and says its version.
    old = program(tmp_path / "python3.9", '[ "$1" = -V ] && echo Python 3.9.18')
    code, said = tried(VIRTUAL_ENV="", PYTHON=old)
    assert code == 1
    assert said == [
        f"fedpriv: this needs Python 3.11 or later, and {old} is Python 3.9.18."
        " Name another: PYTHON=python3.11 scripts/try"
    ]


def test_no_python() -> None:
    code, said = tried(VIRTUAL_ENV="", PYTHON="no-such-python")
    assert (code, said) == (
        1,
        ["fedpriv: this needs Python 3.11 or later, and there is no no-such-python."],
    )


def test_no_network_for_packages(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python", f'exec "{sys.executable}" "$@"')
    code, said = tried(VIRTUAL_ENV=str(tmp_path))
    assert code == 1
    assert len(said) == 1
    assert said[0].startswith("fedpriv: no network for packages: pip says, ")


def test_what_is_installed_is_run_with_the_arguments(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python", f'exec "{sys.executable}" "$@"')
    program(tmp_path / "bin" / "fedpriv", 'echo "$@"')
    assert tried(VIRTUAL_ENV=str(tmp_path)) == (0, ["simulate --personal-sites 4"])
