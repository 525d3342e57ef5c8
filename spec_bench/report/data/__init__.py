"""Rows and records as the report needs them: read, pooled over seeds, set against each other."""
