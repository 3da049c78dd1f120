"""Keep libraries from calling home, and from running code that they fetch from a hub."""

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
    # Waiting threads give their core away. That changes nothing for one process alone on a machine.
    # Four sites on two cores took four times as long when their threads spun.
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
_ONE_AT_A_TIME = RLock()  # else a thread could restore what another one has replaced
_OF_TRANSFORMERS = "transformers.integrations.hub_kernels"


@contextmanager
def without_hub_code() -> Iterator[None]:
    """Import libraries and load models without the code that they would fetch from a hub.

    If the package kernels is installed, bitsandbytes fetches a faster product with it on import,
    and transformers fetches whatever a model's config.json names. In this context kernels counts as
    not installed, and a transformers that was imported earlier fetches nothing with it. Torch's
    compiler is not loaded either, which would take two seconds: bitsandbytes would pass it its
    functions for devices that it has no library for. As a decorator it holds for a whole function.
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
