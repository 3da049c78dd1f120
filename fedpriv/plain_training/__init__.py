"""Train and score without noise: public records, or a site's own for itself alone."""
