"""Verification: node rules, which are pure functions, and the walk over the tree. Imports core
only.
"""
