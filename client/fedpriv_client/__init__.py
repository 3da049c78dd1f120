"""The site's process: what a hospital runs, and all that may touch its records.

It imports only `fedpriv` and Flower's client half. So a hospital has to review nothing but this
package and `fedpriv`.
"""

from typing import Any

from fedpriv.environment import set_environment

set_environment()


def __getattr__(name: str) -> Any:
    if name == "client_app":  # it is heavy, so it is loaded on demand
        from fedpriv_client.app import client_app

        return client_app
    raise AttributeError(f"module 'fedpriv_client' has no attribute {name!r}")
