"""What runs under a reservation: sample, clip, add up, add noise, release."""
