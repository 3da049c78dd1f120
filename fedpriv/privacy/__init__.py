"""What a release costs, who pays for it, and the noise that makes it private."""
