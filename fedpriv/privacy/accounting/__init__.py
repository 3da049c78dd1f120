"""How much a plan costs: privacy loss distributions, Rényi bounds, calibration of the noise."""
