"""What is read off the machine: provenance, memory, energy. Imports the records only."""
