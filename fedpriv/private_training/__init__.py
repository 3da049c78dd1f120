"""Compute what a site makes of private records, up to the sum that noise is added to."""
