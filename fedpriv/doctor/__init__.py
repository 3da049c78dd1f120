"""What is wrong on a machine before a job finds out, and what to type."""
