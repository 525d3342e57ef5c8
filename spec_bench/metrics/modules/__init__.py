"""Modules behind the interface of the ``evaluate`` package that work without a network."""
