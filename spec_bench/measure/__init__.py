"""Measurements of the machine: provenance, memory, energy. Imports the records only."""
