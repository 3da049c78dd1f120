"""A whole federation on one machine: the same client and server code, without a network."""

from fedpriv.environment import set_environment

set_environment()
