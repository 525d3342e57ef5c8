"""Records into rows of the results table."""
