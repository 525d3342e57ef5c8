"""Loads models and runs their forward passes over a KV cache; the only layer that knows
transformers.

Dimension letters: R rows, T tokens of one pass, N tree nodes, S cache slots, V vocabulary, H heads.
"""
