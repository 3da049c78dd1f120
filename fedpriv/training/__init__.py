"""What a site computes in one private step, and the optimiser that uses what it releases."""
