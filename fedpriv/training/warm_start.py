"""Some steps on public records before the first round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedpriv.config.job import OptimizerSection
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.training.optimizer import VectorOptimizer
from fedpriv.training.public_records import mean_gradient
from fedpriv.training.worker import Worker


def warm_start(
    worker: Worker,
    records: Sequence[Example | None],
    parameters: Privatised[Vector],
    *,
    steps: int,
    lr: float,
) -> Privatised[Vector]:
    """The parameters after some steps by adamw along the records' mean gradient.

    Privacy:
        Of public records alone; costs nothing.
    """
    optimizer = VectorOptimizer(OptimizerSection(lr=lr), parameters)
    gradient = partial(mean_gradient, worker, records)
    for _ in range(steps):
        optimizer.step(post_process(gradient, optimizer.vector))
    return optimizer.vector
