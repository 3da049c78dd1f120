"""What ends a site's process is said by its cause."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv.errors import AdmissionError, EnrolmentError
from fedpriv.process import read_status
from fedpriv_client import serve as module


@pytest.mark.parametrize("ended", [True, False])
def test_a_certificate_that_ended_since_the_start_is_named(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise AdmissionError("localhost:1: does not know this site's key.")

    def identity(file: object) -> None:
        if ended:
            raise EnrolmentError("site.crt: the certificate expired on 2026-01-01 00:00 UTC.")

    service = SimpleNamespace(connect=refused, run=print, close=lambda: None)
    connection = SimpleNamespace(greet=lambda: None)
    monkeypatch.setattr(module, "Service", lambda *_: service)
    monkeypatch.setattr(module, "connection_of", lambda _: connection)
    monkeypatch.setattr(module, "identity", identity)
    monkeypatch.setattr(module, "_app", lambda *_: None)
    site = SimpleNamespace(state_dir=tmp_path / "state", name="a", health=None, metrics_port=None)
    file: Any = SimpleNamespace(site=site, server=SimpleNamespace(address="localhost:1"))
    error = EnrolmentError if ended else AdmissionError
    said = "expired on" if ended else "does not know this site's key"
    with pytest.raises(error, match=said):
        module.serve(file, tmp_path / "site.toml")
    assert said in read_status(tmp_path / "state")["problem"]
