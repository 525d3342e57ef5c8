"""Exact losslessness checks: rules by enumeration, decoders end to end, pairs greedily."""
