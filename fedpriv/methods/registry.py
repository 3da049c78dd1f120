"""Methods by name, of whatever package brings one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.plugins import METHODS, load

if TYPE_CHECKING:
    from fedpriv.private_training.method import Method

CONTROLS = "pe-sgd-gradient", "pe-sgd-products", "pe-sgd-residual"  # of earlier versions


def find_method(name: str) -> Method:
    """Make the method of that name.

    Raises:
        ConfigError: no such method is installed.
    """
    control = "was a control of earlier versions, and no better than pe-sgd or dp-lora"
    problem = control if name in CONTROLS else "no such method is installed"
    method: Method = load(METHODS, name, key="job.method", problem=problem)()
    return method
