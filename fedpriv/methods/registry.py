"""Methods by name, of whatever package brings one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.plugins import METHODS, SERVER_HALVES, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedpriv.methods.server_half import ServerContext, ServerMethod
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


def find_server_half(name: str) -> Callable[[ServerContext], ServerMethod]:
    """Return what makes the server's half of the method of that name, for a job.

    Raises:
        ConfigError: none is installed.
    """
    problem = "has no half for a server"
    half: Callable[[ServerContext], ServerMethod] = load(
        SERVER_HALVES, name, key="job.method", problem=problem
    )
    return half
