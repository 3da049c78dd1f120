"""A broker that listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpriv_server import long_poll
from fedpriv_server.fleet_api import fleet_api
from fedpriv_server.listen import serving
from tests.network.network_by_hand import Network


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """A grid over a broker that listens; sites' questions are held for a moment only."""
    monkeypatch.setattr(long_poll, "HOLD", 0.2)
    made = Network(tmp_path)
    with serving(fleet_api(made.grid), ("127.0.0.1", 0), None) as port:
        made.port = port
        yield made
        made.close()
