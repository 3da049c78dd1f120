"""Find methods by name, in any package that brings one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.plugins import METHODS, load

if TYPE_CHECKING:
    from fedpriv.private_training.method import Method


def find_method(name: str) -> Method:
    """Make the method of that name.

    Raises:
        ConfigError: no such method is installed.
    """
    problem = "no such method is installed"
    method: Method = load(METHODS, name, key="job.method", problem=problem)()
    return method
