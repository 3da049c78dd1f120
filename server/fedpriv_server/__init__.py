"""The coordinator's process: runs a job over a Flower grid, evaluates, checkpoints, reports."""

from fedpriv.environment import no_calls_home

no_calls_home()
