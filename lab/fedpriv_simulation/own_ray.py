"""Ray on this machine, for one run and for nobody else."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedpriv.errors import ConfigError


@contextmanager
def started(count: int) -> Iterator[Any]:
    """Run Ray for `count` processes in a `with` block, and give the library.

    Raises:
        ConfigError: Ray is not installed.
    """
    guard_ray()
    try:
        import ray
    except ImportError:
        fix = "Type: pip install 'fedpriv[simulation]', or set engine = \"inline\"."
        raise ConfigError("is not installed", key="job.engine", value="ray", fix=fix) from None
    ray.init(
        address="local",
        num_cpus=count,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
    )
    try:
        yield ray
    finally:
        ray.shutdown()


def guard_ray() -> None:
    """Let Ray answer nobody but us, because it listens on ports and does what it is told there.

    Call it before Ray is started.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
