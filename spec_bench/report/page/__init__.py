"""HTML pages of experiments, each in one file that loads nothing else, so that it can be mailed."""
