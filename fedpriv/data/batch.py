"""Turn examples into tensors. A row's padded length depends on that row and public settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedpriv.data.encode import NO_LOSS, Example

STEP = 8  # tokens, for short records; longer ones are padded by an eighth at most


@dataclass(frozen=True, eq=False)
class Batch:
    """B examples of one padded length T.

    Args:
        input_ids: (B, T) int64.
        attention_mask: (B, T) int64, 0 on padding.
        labels: (B, T) int64 with -100 where there is no loss, or (B,) class indices.

    Privacy:
        Private, its length too: a realised batch size never leaves a site.
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Return B."""
        return len(self.input_ids)

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on `device`. A GPU copies it while Python goes on."""
        parts = (self.input_ids, self.attention_mask, self.labels)
        if torch.device(device).type == "cuda":
            return Batch(*(part.pin_memory().to(device, non_blocking=True) for part in parts))
        return Batch(*(part.to(device) for part in parts))


def padded_length(length: int, max_length: int) -> int:
    """Return the next of 8, 16, …, 128, 144, …, 256, 288, …, at most `max_length`.

    It is not the length of the batch's longest row: a row's shape, and so its rounding, must not
    depend on who else was sampled.

    Raises:
        ValueError: `length` is not in 1…max_length.
    """
    if not 1 <= length <= max_length:
        raise ValueError(f"Expected 1 <= length={length} <= max_length={max_length}.")
    step = max(STEP, (1 << length.bit_length()) // 16)
    return min(-(-length // step) * step, max_length)


def buckets(examples: Sequence[Example], max_length: int) -> dict[int, list[int]]:
    """Return indices of the examples by padded length, both ascending."""
    grouped: dict[int, list[int]] = {}
    for index, example in enumerate(examples):
        length = padded_length(len(example.input_ids), max_length)
        grouped.setdefault(length, []).append(index)
    return dict(sorted(grouped.items()))


def collate(
    examples: Sequence[Example],
    pad_token_id: int,
    length: int,
    padding_side: Literal["left", "right"] = "right",
) -> Batch:
    """Pad the examples to `length`; padding has no attention and no loss.

    Raises:
        ValueError: an example is longer than `length`.
    """
    longest = max(len(example.input_ids) for example in examples)
    if longest > length:
        raise ValueError(f"Expected examples of at most length={length} tokens, got {longest}.")

    def pad(values: Sequence[int], filler: int) -> list[int]:
        padding = [filler] * (length - len(values))
        return [*padding, *values] if padding_side == "left" else [*values, *padding]

    labels = [
        example.labels if isinstance(example.labels, int) else pad(example.labels, NO_LOSS)
        for example in examples
    ]
    return Batch(
        torch.tensor([pad(example.input_ids, pad_token_id) for example in examples]),
        torch.tensor([pad([1] * len(example.input_ids), 0) for example in examples]),
        torch.tensor(labels),
    )
