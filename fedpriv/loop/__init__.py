"""Private training at one site in a loop of your own: step by step, or with a Trainer."""
