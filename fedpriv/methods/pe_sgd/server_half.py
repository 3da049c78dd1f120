"""PE-SGD at the server: coefficients come in, a gradient of the synthetic set goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.gradients.engine import weighted_gradient
from fedpriv.methods.pe_sgd.span import as_vector
from fedpriv.methods.server_half import ServerContext
from fedpriv.models.vector import Vector
from fedpriv.plain_training.public_records import batches
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.private_training.worker import Worker
from fedpriv.public_update.config import DenoiseSection
from fedpriv.public_update.update import Aggregate
from fedpriv.synthetic.evolution import Evolution, Evolved
from fedpriv.synthetic.records import SetChange

log = logging.getLogger(__name__)


class PeSgdServer:
    """Hold the set in whose gradients sites write theirs, and let it evolve. See `ServerMethod`."""

    def __init__(self, context: ServerContext) -> None:
        assert context.public_set is not None  # the job has seen to it
        self.context = context
        self.public_set: Evolution = context.public_set
        self.values = self.public_set.settings.size
        self._coefficients: Privatised[Vector] | None = None  # those of the last mean
        self._units = 0.0

    @staticmethod
    def settings(config: JobConfig) -> Mapping[str, Any]:
        """Return what sites have to know of the set; see `ProjectionSection`."""
        assert config.synthetic is not None  # the caller has seen to it
        # What is lifted from coefficients has noise of another size in every direction.
        if config.denoise != DenoiseSection():
            problem = (
                "needs noise of one known size, which a gradient made of coefficients does not have"
            )
            raise ConfigError(problem, key="denoise", fix="Leave it out.")
        if config.job.sync > 1 and config.optimizer.weight_decay:
            raise ConfigError(
                "sites move coefficients, which are no weights",
                key="optimizer.weight_decay",
                value=config.optimizer.weight_decay,
                fix="Set it in server_optimizer.",
            )
        return config.synthetic.projection.model_dump(mode="json")

    def start(self, parameters: Vector) -> Vector:
        """Return no move in the span, (N,)."""
        return np.zeros(self.values, dtype=np.float32)

    def change(self, held: str | None) -> SetChange | None:
        """Return what turns the set that a site has into the present one."""
        return self.public_set.change(held)

    def gradient(self, mean: Aggregate) -> Aggregate:
        """Return the gradient that a mean of coefficients stands for.

        Privacy:
            Post-processing: the set is public, the values and the mean were released.
        """
        with self.context.lend() as worker:
            lifted = partial(self.lifted, worker)
            gradient = post_process(lifted, self.context.parameters(), mean.gradient)
        self._coefficients, self._units = mean.gradient, mean.units
        return Aggregate(gradient, 0.0, mean.units)

    def lifted(self, worker: Worker, parameters: Vector, mean: Vector) -> Vector:
        """Return the gradient (P,) of coefficients (N,) at these values."""
        worker.vector.write(parameters)
        of_set = batches(worker, self.public_set.examples)
        weights = torch.from_numpy(mean).double()
        return as_vector(weighted_gradient(worker.gradients, of_set, weights))

    def advance(self, number: int) -> Evolved | None:
        """Let the set evolve by the coefficients of the round."""
        assert self._coefficients is not None  # they were lifted before
        try:
            return self.public_set.advance(self._coefficients, self._scale(), number)
        except Exception as error:  # the model has moved, and must not do so again
            why = str(error) if isinstance(error, FedprivError) else type(error).__name__
            log.warning("Round %d: the synthetic set stays as it is. %s", number, why)
            return None

    def _scale(self) -> float:
        """Return the factor from a mean to the sum of its step; for local steps, as with SGD."""
        proposal, local = self.context.proposal, self.context.proposal.local
        units = self._units / proposal.round_steps
        return units if local is None else units / (local.optimizer.lr * local.count)
