"""The site's own record of what it has spent, and the rules by which it pays."""
