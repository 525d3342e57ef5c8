"""Two results folders set against each other, cell by cell."""
