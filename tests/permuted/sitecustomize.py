"""Lets every Python that a test starts add in the other order, too: conftest.py says when."""

import arithmetic as arithmetic
