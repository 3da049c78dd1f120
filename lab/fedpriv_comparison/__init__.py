"""Methods side by side on public data: same records, same ε, each with settings of its own."""

from fedpriv.environment import set_environment

set_environment()
