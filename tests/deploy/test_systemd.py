"""The units: right by systemd's own checks, closed down, and not too much so to work."""

from __future__ import annotations

import ctypes.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import sandbox
from tests.deploy.dockerfile import ROOT

SOURCE = ROOT / "deploy" / "systemd"
UNITS = ("fedpriv-server.service", "fedpriv-client@.service")
BIN = Path(sys.executable).parent
EXPOSED = 15  # tenths, of 100, by `systemd-analyze security`
analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def analysed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


@analyze
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("gpu", [False, True])
def test_systemd_takes_it(unit: str, gpu: bool, tmp_path: Path) -> None:
    """With the commands of this environment in the place of those in /opt."""
    text = (SOURCE / unit).read_text()
    assert text.count("/opt/fedpriv/bin/") == 1
    file = tmp_path / unit.replace("@", "@surgery")
    file.write_text(text.replace("/opt/fedpriv/bin", str(BIN)))
    if gpu:
        folder = tmp_path / f"{file.name}.d"
        folder.mkdir()
        shutil.copy(SOURCE / "gpu.conf", folder)

    def complaints() -> list[str]:
        """About ours; it looks at what a unit needs of the machine's too."""
        checked = analysed("verify", "--man=no", str(file))
        return [line for line in checked.stderr.splitlines() if "fedpriv" in line]

    assert not complaints()
    file.write_text(file.read_text().replace("ProtectSystem=", "ProtectSistem="))
    assert "ProtectSistem" in complaints()[0]  # so it does look


@analyze
@pytest.mark.parametrize("unit", UNITS)
def test_it_is_closed_down(unit: str) -> None:
    checked = analysed(
        "security", "--offline=true", f"--threshold={EXPOSED}", "--no-pager", str(SOURCE / unit)
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("unit", UNITS)
def test_exit_codes_are_those_of_the_documentation(unit: str) -> None:
    found = sandbox.settings(SOURCE / unit)
    text = (ROOT / "docs/how-to/network.md").read_text()
    table = text.partition("**Exit codes**")[2].partition("Anything else")[0]
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", table, re.MULTILINE)
    asks = {code for code, _ in rows if code not in ("0", "130")}
    assert asks == {"2", "3", "4", "5", "6"}
    assert set(found["RestartPreventExitStatus"]) == asks
    assert found["SuccessExitStatus"] == ["130"]
    assert found["Restart"] == ["on-failure"]
    assert found["KillSignal"] == ["SIGTERM"]


def test_the_units_differ_in_what_they_run_alone() -> None:
    server, client = (sandbox.settings(SOURCE / unit) for unit in UNITS)
    differ = {key for key in server.keys() | client.keys() if server.get(key) != client.get(key)}
    assert differ == {
        "Description",
        "ExecStart",
        "WorkingDirectory",
        "StateDirectory",
        "LimitNOFILE",
        "User",
        "Group",
    }


@pytest.mark.slow
@analyze
@pytest.mark.skipif(ctypes.util.find_library("seccomp") is None, reason="there is no libseccomp")
@pytest.mark.parametrize("unit", UNITS)
def test_the_filter_lets_training_work(
    unit: str, federation: Callable[..., Any], tmp_path: Path
) -> None:
    """Model, records, steps, ledgers and report; and what is not allowed fails."""
    file, out = federation(rounds=2), tmp_path / "run"
    under = [sys.executable, sandbox.__file__, str(SOURCE / unit)]
    refused = subprocess.run([*under, "chroot", "/", "true"], capture_output=True, text=True)
    assert refused.returncode != 0
    assert "Operation not permitted" in refused.stderr
    run = [str(BIN / "fedpriv"), "simulate", str(file), "--out", str(out)]
    made = subprocess.run([*under, *run], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
