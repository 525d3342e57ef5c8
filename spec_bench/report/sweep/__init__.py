"""One page for any results folder: the answer first, then what it rests on, to look at."""
