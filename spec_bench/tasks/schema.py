"""The schema of an SQLite database as text for a prompt."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path


def database_file(folder: Path, database_id: str) -> Path:
    """Where Spider's layout keeps a database: ``<folder>/<id>/<id>.sqlite``.

    Raises:
        ValueError: no such file; the message lists the databases that are there.
    """
    file = folder / database_id / f"{database_id}.sqlite"
    if not file.is_file():
        there = sorted(path.parent.name for path in folder.glob("*/*.sqlite"))
        raise ValueError(f"no database {file}; found {', '.join(there) or 'none'}")
    return file


@cache
def schema_text(file: Path) -> str:
    """One line ``table(column, column)`` for each table, in the order of creation."""
    # A file: URI with mode=ro neither creates nor changes the database.
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            " ORDER BY rowid"
        ).fetchall()
        return "\n".join(
            f"{table}({', '.join(_columns(connection, table))})" for (table,) in tables
        )


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    rows = connection.execute("SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,))
    return [name for (name,) in rows]
