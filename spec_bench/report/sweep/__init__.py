"""One page for any results folder: the answer first, then the figures behind it."""
