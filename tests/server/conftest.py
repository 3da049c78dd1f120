"""A link that listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from network_link import Network

from fedpriv_server import link as links
from fedpriv_server.listen import serving


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """A grid over a link that listens; sites' questions are held for a moment only."""
    monkeypatch.setattr(links, "HOLD", 0.2)
    made = Network(tmp_path)
    with serving(made.link.app(), ("127.0.0.1", 0), None) as port:
        made.port = port
        yield made
        made.close()
