"""How the server divides a round's noise among groups of trained parameters."""
