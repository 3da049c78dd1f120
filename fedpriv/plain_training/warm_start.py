"""Some passes over the synthetic set before the first round."""

from __future__ import annotations

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
    """Return the parameters after the set's own number of passes by adamw, in batches, at its rate.

    The rate falls linearly to nothing. Anyone who has the set comes to the same values.

    Raises:
        ConfigError: numbers overflow.

    Privacy:
        Of public records alone; costs nothing.
    """
    settings = public_set.settings
    records = [record for record in public_set.examples if record is not None]

    def gone_on(values: Vector) -> Vector:
        count, made = 0, values
        moves = passes(
            worker,
            values,
            records,
            settings.warm_start_lr,
            epochs=settings.warm_start,
            batch_size=BATCH,
            falling=True,
        )
        for moved in moves:  # one at a time: each is P long
            made, count = moved, count + 1
        if count < settings.warm_start:
            raise ConfigError(
                "overflows",
                key="synthetic.warm_start_lr",
                value=settings.warm_start_lr,
                fix="Lower it.",
            )
        return made

    return post_process(gone_on, parameters) if records else parameters
