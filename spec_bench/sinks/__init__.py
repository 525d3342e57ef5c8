"""Where results go: CSV, console, Weights & Biases. Imports the records only."""
