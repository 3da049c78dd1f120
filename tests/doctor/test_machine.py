"""What a machine has, told as it is: each thing as it should be, and broken."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpriv import distribution
from fedpriv.doctor import machine
from fedpriv.doctor.finding import DoubtError, Finding, look
from fedpriv.errors import BudgetError, ConfigError
from fedpriv.models.config import ModelSection
from fedpriv.private_training.config import ComputeSection


def test_a_look_is_right_wrong_or_in_doubt() -> None:
    def doubtful() -> str:
        raise DoubtError("who knows")

    def wrong() -> str:
        raise BudgetError("too much")

    assert look("a", lambda: "fine") == Finding("a", True, "fine")
    assert look("b", doubtful) == Finding("b", None, "who knows")
    assert look("c", wrong) == Finding("c", False, "too much", 4)


def test_packages_are_those_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torch" in machine.packages()
    texts = ["numpy<1", "no-such-package>=2", "ray>9; extra == 'x'"]
    monkeypatch.setattr(distribution, "requires", lambda name: texts if "-" not in name else [])
    with pytest.raises(ConfigError) as error:
        machine.packages()
    assert "pip install 'numpy<1' 'no-such-package>=2'" in str(error.value)
    assert "ray" not in str(error.value)


def test_a_device_is_there_or_not() -> None:
    assert machine.device(ComputeSection(device="cpu")).startswith("cpu, ")
    assert "3 processes" in machine.device(ComputeSection(device="cpu", devices=3))
    with pytest.raises(ConfigError, match=r"compute\.device"):
        machine.device(ComputeSection(device="cuda:99"))


@pytest.mark.parametrize(("ratio", "doubt"), [(0.4, False), (12.3, True)])
@pytest.mark.parametrize("dtype", ["mixed", "bfloat16"])
def test_how_slow_a_processor_is_at_the_number_format_is_told(
    dtype: Any, ratio: float, doubt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.doctor.number_format.time_in_halves", lambda *_: ratio)
    compute = ComputeSection(device="cpu", dtype=dtype)
    said = f"{dtype!r}: .* take {ratio:.2g} times as long"
    if doubt:
        with pytest.raises(DoubtError, match=said + '.*"float32"'):
            machine.number_format(ModelSection(), compute)
    else:
        assert re.search(said, machine.number_format(ModelSection(), compute))


@pytest.mark.parametrize(("state", "said"), [(5, "nothing synchronises it"), (-1, "does not say")])
def test_a_clock_that_nothing_keeps_is_told(
    monkeypatch: pytest.MonkeyPatch, state: int, said: str
) -> None:
    class Libc:
        def adjtimex(self, buffer: Any) -> int:
            return state

    monkeypatch.setattr(machine.ctypes, "CDLL", lambda *args, **options: Libc())
    with pytest.raises(DoubtError, match=said):
        machine.clock()
    state = 0
    assert machine.clock() == "synchronised by the system"


def test_a_port_is_free_taken_or_not_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"site\.health: .*in use.*ss -ltnp"):
            machine.port(address, "site.health")
    assert machine.port(address, "site.health") == f"{address} is free"
    assert machine.port(address, "site.health")  # nothing was left listening
    with pytest.raises(ConfigError, match="an address of this machine"):
        machine.port("192.0.2.1:8443", "server.listen")


def test_a_folder_has_room_or_not(tmp_path: Path) -> None:
    there = machine.disk(tmp_path / "not" / "yet", 1e6, "site.state_dir")
    assert str(tmp_path) in there
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"site\.state_dir: has .* GB free"):
        machine.disk(tmp_path, 1e18, "site.state_dir")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A disk that can't be written to, where this machine lets a test mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a disk")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_read_only_disk_is_told(read_only: Path) -> None:
    with pytest.raises(ConfigError, match="Read-only file system"):
        machine.disk(read_only / "state", 0, "site.state_dir")
