"""Sites and coordinators one version apart: what an older one wrote is read, and written the same.

Whatever is written byte for byte as an older version wrote it, an older version reads.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from fedpriv.protocol import Signed
from tests.golden_messages import MESSAGES, digests

KEPT = json.loads(Path(__file__).with_name("golden_messages.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", KEPT["messages"])
def test_a_message_of_an_older_version_is_read_and_written_as_it_was(name: str) -> None:
    text, message = KEPT["messages"][name], MESSAGES[name]
    read = type(message).model_validate_json(text)
    assert read == message
    assert read.model_dump_json() == message.model_dump_json() == text


def test_digests_are_those_of_the_older_version() -> None:
    assert digests() == KEPT["digests"]


def test_there_is_a_golden_message_of_each_kind() -> None:
    assert MESSAGES.keys() == KEPT["messages"].keys()


@pytest.mark.parametrize("signature", ["a" * 17, "a" * 14, "g" * 16])
def test_a_signature_is_whole_bytes_in_hex(signature: str) -> None:
    with pytest.raises(ValidationError, match="signature"):
        Signed(at=datetime.now(UTC), certificate="", signature=signature)
