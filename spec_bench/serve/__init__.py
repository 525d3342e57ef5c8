"""Starts other engines' servers, runs jobs on them, and ends them."""
