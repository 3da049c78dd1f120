"""What libraries find in a process when they are imported: no calls home, no code of a hub."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

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
    logging.getLogger(_BITSANDBYTES).setLevel(logging.ERROR)  # it warns that kernels is missing


_BITSANDBYTES = "bitsandbytes.backends.cpu.ops"
_ONE_AT_A_TIME = RLock()  # or a thread would put back what another one has put there
_OF_TRANSFORMERS = "transformers.integrations.hub_kernels"


@contextmanager
def without_hub_code() -> Iterator[None]:
    """Import libraries and load models without what they would fetch from a hub and run.

    Where the package kernels is installed, bitsandbytes gets a faster product by it as it is
    imported, and transformers whatever a model's config.json names. Here it is not installed, and
    transformers gets nothing by it if it was imported before. Nor is torch's compiler loaded,
    which takes two seconds: bitsandbytes hands it what it computes where it has no library for a
    device. As a decorator it holds for a whole function.
    """
    import torch

    with _ONE_AT_A_TIME:
        log = logging.getLogger(_BITSANDBYTES)
        level, compiler, missing = log.level, torch.compile, object()
        kernels: Any = sys.modules.get("kernels", missing)
        known = vars(sys.modules.get(_OF_TRANSFORMERS, sys))
        fetch = known.get("get_kernel_hub")
        log.setLevel(logging.ERROR)
        sys.modules["kernels"] = None  # type: ignore[assignment]
        torch.compile = lambda function, **_: function  # type: ignore[assignment]
        if fetch is not None:
            known["get_kernel_hub"] = _refuse
        try:
            yield
        finally:
            if fetch is not None:
                known["get_kernel_hub"] = fetch
            torch.compile = compiler
            log.setLevel(level)
            del sys.modules["kernels"]
            if kernels is not missing:
                sys.modules["kernels"] = kernels


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    raise FileNotFoundError(f"{name} is code of a hub, which is not run here")
