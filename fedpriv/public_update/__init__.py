"""Make use of released values, which costs no privacy: denoise them, and move."""
