"""What masked shares come to: modulo, centred, whole or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import ProtocolError
from fedpriv.secure_sum import total as total_module
from fedpriv.secure_sum.members import Bits
from fedpriv.secure_sum.total import Total
from tests.secure_sum.secure_sites import signed


@given(
    st.sampled_from([16, 32]), st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3))
)
def test_it_is_the_centred_sum_of_integers(bits: Bits, shares: list[list[int]]) -> None:
    total, half = Total(3, bits), 2 ** (bits - 1)
    for share in shares:
        values = np.array([value % 2**bits for value in share], f"<u{bits // 8}")
        total.add([(slice(0, 1), values[:1]), (slice(1, 3), values[1:])])
    expected = [(sum(share[at] for share in shares) + half) % (2 * half) - half for at in range(3)]
    assert signed(total).tolist() == expected
    assert signed(total).dtype == np.int64


def test_few_values_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(total_module, "BLOCK", 10)
    total, values = Total(25, 16), np.arange(25, dtype="<u2") - 12
    total.add([(slice(0, 25), values.astype("<u2"))])
    blocks = list(total.signed_blocks())
    assert [block.size for _, block in blocks] == [10, 10, 5]
    assert np.array_equal(np.concatenate([block for _, block in blocks]), np.arange(-12, 13))
    assert np.array_equal(signed(total), np.arange(-12, 13))


ONES = np.ones(4, "<u2")
BAD: dict[str, Any] = {
    "nothing": [],
    "too few": [(slice(0, 3), ONES[:3])],
    "too many": [(slice(0, 4), ONES), (slice(4, 5), ONES[:1])],
    "a gap": [(slice(0, 1), ONES[:1]), (slice(2, 4), ONES[:2])],
    "twice": [(slice(0, 2), ONES[:2]), (slice(0, 2), ONES[:2])],
    "one value for all": [(slice(0, 4), ONES[:1])],
    "another width at the end": [(slice(0, 2), ONES[:2]), (slice(2, 4), ONES[:2].astype("<u4"))],
    "signed": [(slice(0, 4), ONES.astype("<i2"))],
    "big-endian": [(slice(0, 4), ONES.astype(">u2"))],
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_share_is_not_added_at_all(what: str) -> None:
    total = Total(4, 16)
    with pytest.raises(ProtocolError, match="Expected 4 values"):
        total.add(BAD[what])
    assert not signed(total).any()


def test_what_can_be_gone_through_once_only_is_refused() -> None:
    total = Total(4, 16)
    with pytest.raises(ProtocolError):
        total.add(iter([(slice(0, 4), ONES)]))
    assert not signed(total).any()
