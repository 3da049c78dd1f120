"""What is made of released values, which costs no privacy: denoise them, and move."""
