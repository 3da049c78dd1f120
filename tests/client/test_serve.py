"""The start of a site's process: what is decided before a server hears of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants, is_offline_mode

from fedpriv.config.load import load_site
from fedpriv.errors import CertificateError, DataError, RunningError
from fedpriv.files import private_folder
from fedpriv.process import only_process
from fedpriv_client.connection import ServerConnection
from fedpriv_client.serve import serve
from fedpriv_client.site_settings import work_folder


class ConnectedError(Exception):
    """The site has told a server who it is."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(connection: ServerConnection) -> int:
        raise ConnectedError

    monkeypatch.setattr(ServerConnection, "connect", connect)


def test_no_client_starts_beside_what_the_site_computes_for_itself(file: Path, told: None) -> None:
    site = load_site(file)
    folder = private_folder(work_folder(private_folder(site.site.state_dir)))
    with only_process(folder), pytest.raises(RunningError, match="another process works in it"):
        serve(site, file)


@pytest.mark.slow
@pytest.mark.parametrize("empty", [13, 24])
def test_records_that_give_nothing_are_refused_before_a_server_hears_of_the_site(
    file: Path, told: None, empty: int
) -> None:
    texts = ["" if number < empty else f"note {number}" for number in range(24)]
    (file.parent / "notes.jsonl").write_text("\n".join(json.dumps({"note": t}) for t in texts))
    with pytest.raises(DataError, match=f"{empty} of 24 records give no example") as found:
        serve(load_site(file), file)
    assert found.value.key == "data.path"
    assert ("data.max_empty" in found.value.fix) is (empty < 24)


@pytest.mark.slow
@pytest.mark.parametrize("looked_at", [True, False])
def test_held_out_records_that_give_nothing_are_refused_where_looks_are_paid_for(
    file: Path, told: None, looked_at: bool
) -> None:
    text = file.read_text()
    text = text.replace("size = 24", 'size = 24\nheld_out = "apart.jsonl"\nheld_out_size = 5')
    file.write_text(text.replace("[allow]", f"[allow]\nevaluation = {str(looked_at).lower()}"))
    (file.parent / "apart.jsonl").write_text('{"note": ""}\n' * 5)
    with pytest.raises(DataError if looked_at else ConnectedError) as found:
        serve(load_site(file), file)
    if isinstance(found.value, DataError):
        assert found.value.key == "data.held_out" and "5 of 5 records" in str(found.value)


@pytest.mark.slow
def test_a_site_whose_records_can_be_used_goes_on_to_connect(file: Path, told: None) -> None:
    texts = ["", *(f"note {number}" for number in range(23))]
    (file.parent / "notes.jsonl").write_text("\n".join(json.dumps({"note": t}) for t in texts))
    with pytest.raises(ConnectedError):
        serve(load_site(file), file)
    assert torch.tensor([1e-40]) * 0.5 > 0  # flushed while it serves, and no longer


@pytest.mark.slow
def test_a_hub_is_asked_for_nothing_while_a_site_serves(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may be the server: whether there is room for what comes depends on records."""

    def connect(connection: ServerConnection) -> int:
        assert is_offline_mode()
        raise ConnectedError

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(ServerConnection, "connect", connect)
    with pytest.raises(ConnectedError):
        serve(load_site(file), file)
    assert not is_offline_mode()


def test_a_wrong_certificate_is_told_before_records_are_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greet(connection: ServerConnection) -> Any:
        raise CertificateError("expired")

    monkeypatch.setattr(ServerConnection, "greet", greet)
    (file.parent / "notes.jsonl").unlink()
    with pytest.raises(CertificateError):
        serve(load_site(file), file)


def test_a_greeting_says_nothing(server: Any, file: Path) -> None:
    from fedpriv_client.serve import connection_of

    file.write_text(file.read_text().replace("127.0.0.1:1", server.address))
    connection = connection_of(load_site(file))
    connection.greet()
    connection.close()
    assert server.asked == []
