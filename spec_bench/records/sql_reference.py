"""A reference answer in SQL: tasks read it, metrics ask its database."""

from __future__ import annotations

from pathlib import Path


class SqlReference(str):
    """A reference answer in SQL, a text like any other, that knows what it is asked of.

    Attributes:
        database: the SQLite file.
    """

    database: Path

    def __new__(cls, sql: str, database: Path) -> SqlReference:
        """The text with its database."""
        reference = super().__new__(cls, sql)
        reference.database = database
        return reference
