"""The coordinator's process. It runs a job over a Flower grid, evaluates, checkpoints, reports."""

from fedpriv.environment import set_environment

set_environment()
