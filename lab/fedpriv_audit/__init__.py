"""Audits: what an attacker can tell of canaries and records, and of twins with less noise."""

from fedpriv.environment import set_environment

set_environment()
