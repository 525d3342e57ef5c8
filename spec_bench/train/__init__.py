"""Training of draft heads on a frozen target: ``python -m spec_bench.train``."""
