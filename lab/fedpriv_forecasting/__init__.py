"""Whether joining a federation is expected to pay. It uses only public facts and measured runs."""
