"""Train all of a site's own models, and choose which of them answer with the federation's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedpriv.config.personal import PersonalSection
from fedpriv.models.vector import Vector
from fedpriv.names import OwnKind
from fedpriv.personal.answering import Answer, choose_answer
from fedpriv.personal.records import OwnParts
from fedpriv.personal.training import Epoch, Personal, train_alone
from fedpriv.private_training.worker import Worker

TRAINED: tuple[OwnKind, ...] = ("alone", "again", "personal")  # with adapters of the job's shape


@dataclass(frozen=True, eq=False)
class OwnModels:
    """A site's own models, and which of them answer.

    Privacy:
        None: made of raw records, and stays at the site.
    """

    trained: dict[OwnKind, Personal]
    answer: Answer


def train_own(
    worker: Worker,
    federated: Vector,
    another: Vector,
    own: OwnParts,
    settings: PersonalSection,
    *,
    only_personal: bool = False,
    begun: Callable[[OwnKind], None] = lambda kind: None,
    told: Callable[[Epoch], None] = lambda epoch: None,
) -> OwnModels:
    """Train from the base model, twice, and from the federation's adapter.

    The second model from the base has the rate and passes that were chosen for the first. It never
    answers. It tells how far seeds differ, and what two own models are worth.

    Args:
        federated: the values (P,) of the federation's adapter.
        another: the values (P,) of another initial adapter.
        own: the site's records, at least one.
        only_personal: train only from the federation's adapter. The result then answers by itself.
        begun: told of each model before it is trained.
        told: of every pass.

    Privacy:
        None: made of raw records, and stays at the site.
    """
    again = int(np.array_equal(another, worker.initial))  # another order, where A is not trained
    starts: dict[str, Vector] = {"alone": worker.initial, "again": another, "personal": federated}
    trained: dict[OwnKind, Personal] = {}
    for kind in TRAINED:
        if only_personal and kind != "personal":
            continue
        begun(kind)
        trained[kind] = train_alone(
            worker,
            starts[kind],
            own,
            settings.beginning(kind),
            seed=again if kind == "again" else 0,
            as_for=trained["alone"] if kind == "again" else None,
            told=told,
        )
    if only_personal:
        return OwnModels(trained, Answer({"personal": 1.0}, {}, 0.0))
    return OwnModels(trained, choose_answer(worker, own, trained, federated, settings.beside))
