"""Define what stands for a frozen weight that is kept in fewer bits, in whatever form."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Packed(nn.Module):
    """A frozen weight (out, in), where a layer's parameter stood; it moves with the layer.

    Attributes:
        dtype: the type in which `unpacked` makes it.
    """

    dtype: torch.dtype

    def unpacked(self) -> Tensor:
        """Return the weight (out, in), made anew at every call."""
        raise NotImplementedError
