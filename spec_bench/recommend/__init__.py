"""Recommends a decoder, computes the draft that would pay, and fits trees to a pair."""
