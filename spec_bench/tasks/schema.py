"""SQLite databases in Spider's layout: where they lie, their schema as text, their digest."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
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


def databases_digest(files: Iterable[Path]) -> str:
    """SHA-256, in hex, over the databases' names and contents, whatever their order and folder.

    It is the digest of the lines ``<sha256 of the file>  <id>/<id>.sqlite`` sorted by name: what
    ``sha256sum */*.sqlite | sha256sum`` prints in the folder that holds them, under LC_ALL=C.
    """
    named = {f"{file.parent.name}/{file.name}": file for file in files}
    lines = [f"{_file_digest(named[name])}  {name}\n" for name in sorted(named)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
