"""Private training methods, each in a folder of its own, found by name."""
