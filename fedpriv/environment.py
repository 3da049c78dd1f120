"""What libraries read from the environment when they are imported: no calls home, no spinning."""

from __future__ import annotations

import os

_DEFAULTS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    # Threads that wait give their core away. Alone on a machine that changes nothing; four sites
    # on two cores took four times as long when the threads of each spun.
    "OMP_WAIT_POLICY": "PASSIVE",
}


def set_environment() -> None:
    """Turn off telemetry and update checks; call before Flower, transformers or torch is imported.

    A value that the user has set stays.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
