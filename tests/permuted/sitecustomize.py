"""Lets every Python that a test starts add in the other order, too: conftest.py says when."""

from tests import arithmetic as arithmetic
