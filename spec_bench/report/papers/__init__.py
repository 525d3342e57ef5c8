"""A paper as data: its tables, figures, claims, recipes and published pairs."""
