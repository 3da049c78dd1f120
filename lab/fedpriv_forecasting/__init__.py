"""Whether joining a federation is expected to pay, from public facts and measured runs alone."""
