"""Destinations of results: CSV, console, Weights & Biases. Imports the records only."""
