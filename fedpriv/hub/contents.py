"""What an exported folder holds, for those who write its files and its card."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedpriv.errors import ConfigError
from fedpriv.models.config import ModelSection

_LICENSE = r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}"


@dataclass(frozen=True)
class Contents:
    """What the folder holds.

    Attributes:
        private: it need not be stamped NOT PRIVATE.
        merged: the whole model, and not an adapter of it.
        base: the base model's name at a hub; None where it is known by its digest alone.
        base_here: the base model lies beside the adapter.
        model: as the federation file has it.
        license: its identifier at a hub, as whoever publishes it states it.
        weights_digest: of the adapter that the run made.

    Raises:
        ConfigError: `license` can be no identifier of a licence.
    """

    private: bool
    merged: bool
    base: str | None
    base_here: bool
    model: ModelSection
    license: str | None
    weights_digest: str

    def __post_init__(self) -> None:
        if self.license is not None and not re.fullmatch(_LICENSE, self.license):
            raise ConfigError(
                "is no identifier of a licence",
                key="--license",
                value=self.license,
                fix="Give one as model hubs write it, such as apache-2.0, or other.",
            )
