"""Per-record gradients and the clipped sum of them."""
