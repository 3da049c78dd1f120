"""Audits: what an attacker can tell about canaries and records, and about twins with less noise."""

from fedpriv.environment import set_environment

set_environment()
