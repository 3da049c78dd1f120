"""How far a secure sum is, on disk: read back as it was, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import RunError
from fedpriv.protocol import SetRequest
from fedpriv_server import checkpoint as module
from fedpriv_server.checkpoint import SumFile
from fedpriv_strategies.secure_rounds import SumState
from tests.secure_sum.secure_sites import set_of, sites

MEMBERS = set_of(sites("a", "b", "c"))
REQUEST = SetRequest(job_id="job", slot=3, bits=16, members=MEMBERS.members)
STATES = (SumState(1, 0), SumState(3, 4, REQUEST), SumState(3, 4, REQUEST, tries=2))


@pytest.fixture
def file(tmp_path: Path) -> SumFile:
    return SumFile(tmp_path / "checkpoint" / "sum.json")


def test_nothing_is_known_before_anything_was_kept(file: SumFile) -> None:
    assert file.read() is None


@pytest.mark.parametrize("state", STATES)
def test_a_state_is_read_as_it_was_kept(file: SumFile, state: SumState) -> None:
    file.write(SumState(9, 9))
    file.write(state)
    assert SumFile(file.path).read() == state
    assert [path.name for path in file.path.parent.iterdir()] == ["sum.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-20],
        lambda content: content.replace(b'"slot"', b'"spot"'),
        lambda content: content.replace(b'"bits":16', b'"bits":8'),
        lambda content: content.replace(b'"tries":0', b'"tries":"none"'),
        lambda content: b"\xff" + content,
    ],
)
def test_a_damaged_file_is_named(file: SumFile, damage: Any) -> None:
    file.write(STATES[1])
    changed = damage(file.path.read_bytes())
    assert changed != file.path.read_bytes()
    file.path.write_bytes(changed)
    with pytest.raises(RunError) as caught:
        file.read()
    assert str(file.path) in str(caught.value)
    assert "Put the newest one back" in str(caught.value)


def test_a_disk_that_fails_leaves_the_state_of_before(
    file: SumFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write(STATES[0])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_atomic", full)
    with pytest.raises(RunError, match="slot 4 can't be kept") as caught:
        file.write(STATES[1])
    assert str(file.path) in str(caught.value)
    assert file.read() == STATES[0]
