"""Loading a model, its KV cache and its forward pass; the only layer that knows transformers.

Dimension letters: R rows, T tokens of one pass, N tree nodes, S cache slots, V vocabulary, H heads.
"""
