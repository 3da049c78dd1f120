"""What a site makes of its own records for itself alone, without noise. It is never handed on.

Law 16: nothing that crosses the network, goes into a report or an export, or is logged, is computed
from what is made here. No module that speaks to a server imports this package (`pyproject.toml`).
"""
