"""DP-LoRA: clipped per-record gradients of an adapter, added up and noised."""
