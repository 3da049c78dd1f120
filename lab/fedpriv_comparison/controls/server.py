"""What the controls' halves at the server have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError
from fedpriv.methods.pe_sgd.server_half import PeSgdServer


class ControlServer(PeSgdServer):
    """As of PE-SGD, and no local steps."""

    @staticmethod
    def settings(config: JobConfig) -> Mapping[str, Any]:
        """As of PE-SGD."""
        if config.job.sync > 1:
            raise ConfigError(
                "is 1 for a method whose releases are projected at the server",
                key="job.sync",
                value=config.job.sync,
                fix="Use pe-sgd, or one step a round.",
            )
        return PeSgdServer.settings(config)
