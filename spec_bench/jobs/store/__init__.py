"""Where it is kept: a folder a cell, a table an experiment. Knows what was asked."""
