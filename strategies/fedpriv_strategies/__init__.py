"""Flower strategies: the server's half of each method. They see privatised values only."""

from fedpriv.environment import set_environment

set_environment()
