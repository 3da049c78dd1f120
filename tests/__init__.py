"""Tests, in folders that mirror the code; helpers are imported by their whole path."""
