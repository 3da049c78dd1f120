"""What a site computes of private records, up to the sum that noise is added to."""
