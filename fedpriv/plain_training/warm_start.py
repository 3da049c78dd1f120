"""Make some passes over the synthetic set before the first round."""

from __future__ import annotations

from typing import Any

from fedpriv.errors import ConfigError
from fedpriv.models.vector import Vector
from fedpriv.plain_training.passes import passes
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.private_training.worker import Worker
from fedpriv.synthetic.evolution import Evolution

BATCH = 8  # records, as in a site's own training


def warm_start(
    worker: Worker, public_set: Evolution, parameters: Privatised[Vector]
) -> Privatised[Vector]:
    """Return the parameters after passes over the set by adamw, in batches.

    The set's settings give the number of passes and the rate. The rate falls linearly to nothing.
    Anyone who has the set comes to the same values.


    Raises:
        ConfigError: numbers overflow.

    Privacy:
        Made of public records alone. It costs nothing.
    """
    settings = public_set.settings
    records = [record for record in public_set.examples if record is not None]

    def gone_on(values: Vector) -> Vector:
        count, made, rate = 0, values, settings.warm_start_lr
        how: dict[str, Any] = {"epochs": settings.warm_start, "batch_size": BATCH, "falling": True}
        for count, made in enumerate(passes(worker, values, records, rate, **how), 1):  # noqa: B007
            pass  # one at a time: each is P long
        if count < settings.warm_start:
            key = "synthetic.warm_start_lr"
            raise ConfigError("overflows", key=key, value=rate, fix="Lower it.")
        return made

    return post_process(gone_on, parameters) if records else parameters
