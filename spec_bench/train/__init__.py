"""Training of draft heads on a frozen target: ``spec-bench train``."""
