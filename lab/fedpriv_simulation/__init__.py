"""Run a whole federation of one owner: the same client and server code, without a network."""

from fedpriv.environment import set_environment

set_environment()
