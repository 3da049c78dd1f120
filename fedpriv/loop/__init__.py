"""Private training on one site in a loop of one's own: a step at a time, or through a Trainer."""
