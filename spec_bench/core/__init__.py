"""Probabilities and the draft tree; knows torch and nothing else.

Dimension letters used in this layer: R rows, F frontier nodes, N tree nodes (root included),
C children of one node, V vocabulary, B a batch of nodes.
"""
