"""AdamW on gradients that carry noise of a known variance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class DpAdamBC(torch.optim.Optimizer):
    """AdamW whose second moment is freed of the privacy noise that is in it.

    The second moment of a noisy gradient is larger than the gradient's own by the noise's
    variance Φ, which is public. It is subtracted before the root is taken: v̂ − Φ̂, with Φ̂ the
    same moving average of what Φ was in each step. What is left is at least `floor` · Φ̂, because
    v̂ is itself an estimate; the paper has a constant for that, which depends on the units of the
    gradient.

    With Φ = 0 this is AdamW.

    Attributes:
        noise_variance: Φ of the next step's gradient, a coordinate.

    Source:
        Tang, Shpilevskiy & Lécuyer, "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply
        Bias Correction)", AAAI 2024, algorithm 1.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        floor: float,
        eps: float = 1e-8,
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "weight_decay": weight_decay, "floor": floor, "eps": eps,
        }  # fmt: skip
        super().__init__(params, defaults)
        self.noise_variance = 0.0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["noise"] = torch.tensor(0.0, dtype=torch.float64)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        first, second = group["betas"]
        state["step"] += 1
        state["noise"] += (1 - second) * (self.noise_variance - state["noise"])
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        count = state["step"].item()
        unbiased = 1 - second**count
        noise = state["noise"].item() / unbiased
        own = (state["exp_avg_sq"] / unbiased).sub_(noise).clamp_(min=group["floor"] * noise)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(
            state["exp_avg"],
            own.sqrt_().add_(group["eps"]),
            value=-group["lr"] / (1 - first**count),
        )
