"""Probabilities and the draft tree; imports torch but not the other layers.

Dimension letters of this layer: R rows, F frontier nodes, N tree nodes (root included), C children
of a node, V vocabulary, B a batch of nodes.
"""
