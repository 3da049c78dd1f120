"""Flower strategies: the server's half of each method. They see only privatised values."""

from fedpriv.environment import set_environment

set_environment()
