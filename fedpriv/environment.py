"""No calls home: settings that libraries read when they are imported."""

from __future__ import annotations

import os

_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


def no_calls_home() -> None:
    """Turn off telemetry and update checks; call before Flower or transformers is imported.

    A value that the user has set stays.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
