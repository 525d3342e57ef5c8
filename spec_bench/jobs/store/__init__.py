"""Results on disk: a folder per cell, tables per experiment."""
