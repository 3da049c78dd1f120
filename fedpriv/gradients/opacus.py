"""Per-record gradients by opacus, for layers that `PerSampleGradients` does not know."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus import GradSampleModule  # type: ignore[import-untyped]
from torch import Tensor, nn

from fedpriv.errors import NotPrivateError
from fedpriv.gradients.engine import GradientEngine, Losses, Take, backward

# How far rounding may move the rows' sum from autograd's own, as a share of the rows' norm.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}


class OpacusGradients(GradientEngine):
    """Compute gradients by opacus' hooks, also of trained embeddings, norms and convolutions.

    It is slower than `PerSampleGradients` and needs more memory: the summed gradients are computed
    besides. At first use they are compared with the sum of the rows, because a weight that layers
    share may be counted wrongly.

    Raises:
        NotPrivateError: opacus has no exact rule for something that is trained, or a layer mixes
            records.

    Source:
        Yousefpour et al., "Opacus", 2021.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._layers = []
        for name, module in model.named_modules():
            own = [k for k, p in module.named_parameters(recurse=False) if p.requires_grad]
            if not own:
                continue
            if type(module) not in GradSampleModule.GRAD_SAMPLERS:
                raise NotPrivateError(
                    f"{name}.{min(own)}: opacus has no exact rule for the per-record gradients of a"
                    f" trainable {type(module).__name__}. Leave it out of lora.modules_to_save."
                )
            self._layers.append(module)
        try:
            self._hooks = GradSampleModule(model, loss_reduction="sum")
        except NotImplementedError as error:
            raise NotPrivateError(f"opacus can't take this model: {error}.") from None
        self._handles: list[Any] = [
            p.register_hook(self._refuse)  # type: ignore[no-untyped-call]
            for p in self._trained
        ]
        self._checked = self._at_work = False
        self._forget()  # so that what opacus sets at first is there

    def stream(self, losses: Losses, batch_size: int, take: Take) -> None:
        """Stream as `GradientEngine.stream` does; all gradients are held while it runs.

        Raises:
            NotPrivateError: a layer was fed something that is not the batch, or the records'
                gradients don't add up to the gradient of the sum.
        """
        for layer in self._layers:
            layer.training = True  # opacus looks at no others; such a layer has no dropout
        self._at_work = True
        try:
            with _quiet():
                summed = backward(self._model, losses, batch_size, self._trained)
            parts = [
                self._of(p, own, batch_size) for p, own in zip(self._trained, summed, strict=True)
            ]
            if not self._checked:
                self._check(torch.cat(parts, 1), summed)
        finally:
            self._forget()
        for (start, _), part in zip(self.blocks, parts, strict=True):
            take(start, part)

    def _refuse(self, _: Tensor) -> None:
        """Refuse to let a batch go backwards outside of a private step."""
        if not self._at_work:
            raise NotPrivateError(
                "A batch went backwards outside of a private step. Its gradients would be those of"
                " the records themselves, so none are made."
            )

    def _forget(self) -> None:
        """Let go of what the hooks keep, also after a batch that failed half-way."""
        self._at_work = False
        for layer in self._layers:
            vars(layer).pop("max_batch_len", None)
            layer.activations, layer.training = [], False
        for p in self._trained:
            vars(p).pop("_current_grad_sample", None)
            p._forward_counter = 0  # type: ignore[attr-defined]
            p.grad_sample = None  # type: ignore[attr-defined]

    def _of(self, parameter: nn.Parameter, summed: Tensor | None, batch_size: int) -> Tensor:
        found = getattr(parameter, "grad_sample", None)
        if found is None and summed is not None:
            raise NotPrivateError("opacus lost the per-record gradients of a layer.")
        if found is None:  # the layer was not used: its gradient is zero
            return torch.zeros(batch_size, parameter.numel(), dtype=self.dtype, device=self.device)
        if not isinstance(found, Tensor) or found.shape[0] != batch_size:
            raise NotPrivateError(
                "A layer was fed something that is not the batch, so its gradient can't be told"
                " apart by record."
            )
        return found.reshape(batch_size, -1).to(self.dtype)

    def _check(self, found: Tensor, summed: list[Tensor | None]) -> None:
        pairs = zip(self._trained, summed, strict=True)
        sums = [torch.zeros_like(p) if own is None else own for p, own in pairs]
        expected = torch.cat([part.reshape(-1) for part in sums]).to(found)
        off = (found.sum(0) - expected).norm()
        if not off <= TOLERANCE[found.dtype] * found.norm():
            raise NotPrivateError(
                "opacus' per-record gradients of this model don't add up to its gradient."
                " Train LoRA matrices and linear heads only."
            )
        self._checked = True

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Set aside as `GradientEngine.set_aside` does: opacus looks away meanwhile."""
        self._hooks.disable_hooks()
        self._at_work = True
        try:
            with _quiet():
                yield
        finally:
            self._at_work = False
            self._hooks.enable_hooks()

    def detach(self) -> None:
        """Take the hooks off."""
        self._hooks.remove_hooks()
        for handle in self._handles:
            handle.remove()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warning of an adapter in the first layer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        yield
