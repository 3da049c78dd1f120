"""Compare methods on public data: the same records and ε, and settings chosen for each method."""

from fedpriv.environment import set_environment

set_environment()
