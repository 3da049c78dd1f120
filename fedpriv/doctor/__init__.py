"""Find out what is wrong on a machine before a job does, and say what to type."""
