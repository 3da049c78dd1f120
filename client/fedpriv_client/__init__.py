"""The site's process: what a hospital runs, and all that may touch its records.

Imports `fedpriv` and Flower's client half only, so that this package and `fedpriv` are all
that a hospital has to review.
"""

from fedpriv.environment import set_environment

set_environment()
