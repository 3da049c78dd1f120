"""Make the controller of a job from its federation file."""

from __future__ import annotations

from fedpriv.config.groups import GroupTerms
from fedpriv.config.job import JobConfig
from fedpriv.controllers.base import Setting
from fedpriv.controllers.registry import make_controller
from fedpriv.errors import ConfigError
from fedpriv.gradients.groups import Groups
from fedpriv.methods.registry import find_method
from fedpriv.models.vector import TrainableVector
from fedpriv.private_training.method import has_groups
from fedpriv.public_update.controller_run import ControllerRun


def control_of(config: JobConfig, vector: TrainableVector) -> ControllerRun | None:
    """Start the controller of a job that trains this vector. Return None if the job has none.

    Raises:
        ConfigError: the job's method has no groups, or a setting names a group that does not exist.
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
    clip_norm = config.privacy.clip_norm
    controller = make_controller(section, Setting(groups.names, groups.sizes, clip_norm))
    terms = GroupTerms(by=section.groups, count=len(groups), bits=controller.bits)
    return ControllerRun(controller, groups, terms, clip_norm=clip_norm)
