"""Rows and records for the report: how they are read, pooled over seeds and compared."""
