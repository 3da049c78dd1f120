"""`docs/tutorials/consortium.md` from top to bottom, as it stands, on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.followed_pages import PART, Reader
from tests.waiting import free_port

GUIDE = Path(__file__).parents[2] / "docs/tutorials/consortium.md"
LITTLE = {
    "^rounds = 5": "rounds = 2",
    "^max_length = 128": "max_length = 32",
    '^(data = "held-out.*)$': r"\1\nlimit = 8",
}
ROLES = {"", "coordinator", "surgery", "radiology"}


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path, {"8443": str(free_port()), **LITTLE})
    yield made
    made.stop()


def test_a_block_is_typed_somewhere() -> None:
    parts = list(PART.finditer(GUIDE.read_text()))
    assert len(parts) > 30
    assert {part["where"] for part in parts if part["kind"] == "console"} == ROLES
    assert {part["kind"] for part in parts} == {"console", "toml", None}


@pytest.mark.nightly
def test_a_consortium_from_nothing(consortium: Reader) -> None:
    assert consortium.follow(GUIDE.read_text()) > 40
    logs = consortium.log("coordinator")
    assert logs.count("is finished") == 3
    for backup in (consortium.folder / "backup").iterdir():
        assert not backup.stat().st_mode & 0o077
    assert "Traceback" not in logs + consortium.log("surgery") + consortium.log("radiology")
    assert (consortium.folder / "coordinator" / "run-3" / "report.html").exists()
