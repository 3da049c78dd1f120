"""Whether a processor has products in bfloat16, in which `mixed` and `bfloat16` compute."""

from __future__ import annotations

import logging
import platform
from functools import cache

import torch

from fedpriv.private_training.config import ComputeSection

log = logging.getLogger(__name__)


def slow_format(compute: ComputeSection) -> str | None:
    """Return what to say where a number format is far slower than float32; None elsewhere.

    Of a GPU, and of processors other than x86, nothing is known and nothing is said.
    """
    on_a_gpu = compute.device != "cpu" and torch.cuda.is_available()
    if not compute.is_tried or on_a_gpu or platform.machine() != "x86_64":
        return None
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return None
    return (
        f"compute.dtype = {compute.dtype!r}: this processor has no products in bfloat16, and takes"
        ' many times as long as in float32. Use "float32".'
    )


@cache
def warn_if_slow(compute: ComputeSection) -> None:
    """Tell the log, once, where a number format that somebody asks for is slow on this machine."""
    said = slow_format(compute)
    if said is not None:
        log.warning("%s", said)
