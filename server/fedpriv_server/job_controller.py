"""The controller of a job, made of its federation file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fedpriv.config.groups import GroupTerms
from fedpriv.config.job import JobConfig
from fedpriv.controllers.base import Setting
from fedpriv.controllers.registry import make_controller
from fedpriv.data.encode import Example
from fedpriv.errors import ConfigError
from fedpriv.gradients.groups import Groups
from fedpriv.methods.registry import find_method
from fedpriv.models.vector import TrainableVector, Vector
from fedpriv.privacy.accounting.filter import calibrate_filtered
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.private_training.method import has_groups
from fedpriv.public_update.controller_run import ControllerRun


def control_of(
    config: JobConfig,
    vector: TrainableVector,
    records: Sequence[Example],
    judge: Callable[[Sequence[Example], Privatised[Vector]], float],
) -> ControllerRun | None:
    """Start the controller of a job that trains this vector; None if the job has no controller.

    Args:
        records: public records by whose loss it is rewarded; none for no such reward.
        judge: computes the loss of a model on some records.

    Raises:
        ConfigError: the job's method has no groups, or a setting names none of them.
    """
    section = config.controller
    if section is None:
        return None
    if not has_groups(find_method(config.job.method)):
        raise ConfigError(
            f"has nothing to decide about: {config.job.method} releases no gradient of layers",
            key="controller",
            fix="Leave it out, or use method dp-lora.",
        )
    groups = Groups.of(vector.names, vector.shapes, section.groups)
    privacy, filter = config.privacy, None
    if section.adaptive:
        plan = privacy.epsilon, privacy.delta, privacy.sample_rate, config.slots
        filter = calibrate_filtered(*plan)
    clip_norm, rounds = privacy.clip_norm, config.job.rounds
    setting = Setting(
        groups=groups.names,
        sizes=groups.sizes,
        rounds=rounds,
        clip_norm=clip_norm,
        seed=config.job.seed,
        filter=filter,
    )
    controller = make_controller(section, setting)
    terms = GroupTerms(
        by=section.groups, count=len(groups), bits=controller.bits, adaptive=section.adaptive
    )
    rewarded = partial(judge, records) if records else None
    return ControllerRun(
        controller, groups, terms, clip_norm=clip_norm, rounds=rounds, judge=rewarded
    )
