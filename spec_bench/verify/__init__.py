"""Verification of draft trees: node rules, which are pure functions, and the walks over a tree."""
