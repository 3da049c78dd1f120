"""Whether the number format of a site's own file is slower than float32 on its machine."""

from __future__ import annotations

from fedpriv.config.site_file import SiteFile
from fedpriv.models.config import ModelSection
from fedpriv.private_training.number_format import warn_if_slower


def model_of(file: SiteFile) -> ModelSection:
    """The model that a site allows, as far as its own file says."""
    name, labels = file.allow.model, file.data.labels
    if labels:
        return ModelSection(name=name, task="classification", labels=labels)
    return ModelSection(name=name)


def warn(file: SiteFile) -> None:
    """Tell the log if the number format of the file is slower than float32 on this machine."""
    warn_if_slower(model_of(file), file.compute)
