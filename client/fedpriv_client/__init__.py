"""The site's process: what a hospital runs, and all that may touch its records.

Imports `fedpriv` and Flower's client half only, so that this package and `fedpriv` are all
that a hospital has to review.
"""

from typing import Any

from fedpriv.environment import set_environment

set_environment()


def __getattr__(name: str) -> Any:
    if name == "client_app":  # which is heavy, and loaded when somebody asks for it
        from fedpriv_client.app import client_app

        return client_app
    raise AttributeError(f"module 'fedpriv_client' has no attribute {name!r}")
