"""What a model is trained for."""

from typing import Literal

Task = Literal["causal-lm", "classification"]
