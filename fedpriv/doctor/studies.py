"""What studies on public data found about the methods that a federation file asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpriv.config.job import JobConfig

DENOISING = (
    "denoise.where: with a clip norm and a learning rate of its own, plain training had as low a"
    ' loss or a lower one in every study (docs/results/papers.md). Use "off", or compare'
    " both on public records."
)
PE_SGD = (
    "job.method: pe-sgd pays where traffic is scarce: a few hundred records at one site, ε = 1."
    " Elsewhere dp-lora, or training on the public set alone, had the lower loss"
    " (docs/results/pe-sgd.md)."
)
NORMALISE = (
    "privacy.normalise: it gained over 2,000 steps; in jobs of some 40 a small clip norm was as"
    " good (docs/results/controllers.md). Compare both on public records."
)


def advice(job: JobConfig) -> Iterator[str]:
    """Say what was found about each method that is switched on; nothing about plain dp-lora."""
    if job.denoise.where != "off":
        yield DENOISING
    if job.job.method == "pe-sgd":
        yield PE_SGD
    if job.privacy.normalise is not None:
        yield NORMALISE
