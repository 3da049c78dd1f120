"""A whole federation on one machine: the same client and server code, without a network."""

from fedpriv.environment import no_calls_home

no_calls_home()
