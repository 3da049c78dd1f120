"""Some steps on the synthetic set before the first round."""

from __future__ import annotations

from functools import partial

from fedpriv.config.job import OptimizerSection
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.synthetic.evolution import Evolution
from fedpriv.training.optimizer import VectorOptimizer
from fedpriv.training.public_records import mean_gradient
from fedpriv.training.worker import Worker


def warm_start(
    worker: Worker, public_set: Evolution, parameters: Privatised[Vector]
) -> Privatised[Vector]:
    """The parameters after the set's own count of steps by adamw along its mean gradient.

    Privacy:
        Of public records alone; costs nothing.
    """
    settings = public_set.settings
    optimizer = VectorOptimizer(OptimizerSection(lr=settings.warm_start_lr), parameters)
    gradient = partial(mean_gradient, worker, public_set.examples)
    for _ in range(settings.warm_start):
        optimizer.step(post_process(gradient, optimizer.vector))
    return optimizer.vector
