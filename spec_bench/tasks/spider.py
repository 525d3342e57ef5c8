"""Checks Spider's databases: ``spec-bench check spider FOLDER``.

FOLDER holds ``<db_id>/<db_id>.sqlite``. The command opens every database read-only and checks that
it has tables; with ``--rows dev.json`` only the databases that those rows name, and a missing one
is an error. The last line is a SHA-256 over the databases' names and contents. It equals that of
``sha256sum */*.sqlite | sha256sum`` in FOLDER (with LC_ALL=C, if all databases are checked). A
cell's ``cell.json`` has the digest of the databases that its prompts use, as
``examples.databases``.

Spider's authors publish no digest. The hub's dataset HAL-9001/spider-databases publishes the digest
of an archive (205,800,266 bytes) that it calls Spider's own download; ``--archive spider_data.zip``
compares with that digest. We know of no published digest of the unpacked databases; ``--expect
DIGEST`` compares with a digest that you have from elsewhere.
"""

import hashlib
import sqlite3
from argparse import Namespace
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path

from spec_bench.system.errors import UsageError
from spec_bench.system.files import hash_file
from spec_bench.tasks.prompt_files import iter_row_makers

# The card of https://huggingface.co/datasets/HAL-9001/spider-databases
ARCHIVE_SHA256 = "00636695dabed6b5f4b8328a16b13e069a2f16591d5efcce57660669c85b121b"


def get_database_file(folder: Path, database_id: str) -> Path:
    """Finds a database in Spider's layout, ``<folder>/<id>/<id>.sqlite``. Raises UsageError with
    the ids of the existing databases if it is missing.
    """
    file = folder / database_id / f"{database_id}.sqlite"
    if not file.is_file():
        ids = sorted(path.parent.name for path in folder.glob("*/*.sqlite"))
        raise UsageError(f"no database {file}; found {', '.join(ids) or 'none'}")
    return file


def compute_databases_digest(databases: Iterable[Path]) -> str:
    """Computes a SHA-256, in hex, over the databases' names and contents. It depends neither on
    their order nor on their folder.

    It is the digest of the lines ``<sha256 of the file>  <id>/<id>.sqlite`` sorted by name, which
    ``sha256sum */*.sqlite | sha256sum`` prints in the databases' folder, under LC_ALL=C.
    """
    files_by_name = {f"{file.parent.name}/{file.name}": file for file in databases}
    lines = [f"{hash_file(files_by_name[name])}  {name}\n" for name in sorted(files_by_name)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


SCHEMA_LINE = "{table}({columns})"


@cache
def read_schema(database: Path, line_format: str = SCHEMA_LINE) -> str:
    """Reads a database's schema: one ``line_format`` per table, by default ``table(column,
    column)``, in order of creation.
    """
    # A file: URI with mode=ro neither creates nor changes the database.
    with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            " ORDER BY rowid"
        ).fetchall()
        query = "SELECT name FROM pragma_table_info(?) ORDER BY cid"
        columns = {table: connection.execute(query, (table,)).fetchall() for (table,) in tables}
    return "\n".join(
        line_format.format(table=table, columns=", ".join(name for (name,) in names))
        for table, names in columns.items()
    )


def list_databases(folder: Path, rows_file: Path | None) -> list[Path]:
    """Lists the databases to check, sorted by name: those named in the rows of a JSON or JSONL
    file, or all if there is no file. Raises UsageError if there is no database, or if a named one
    is missing.
    """
    if rows_file is not None:
        names = {make()["db_id"] for make in iter_row_makers(rows_file, "--rows")}
        return [get_database_file(folder, name) for name in sorted(names)]
    files = sorted(folder.glob("*/*.sqlite"))
    if not files:
        raise UsageError(f"no database in {folder}: expected <db_id>/<db_id>.sqlite")
    return files


def _describe_database_fault(file: Path) -> str:
    """Describes the fault of an unreadable or empty database; "" if it has none."""
    try:
        return "" if read_schema(file) else f"{file}: no tables"
    except sqlite3.Error as error:
        return f"{file}: {error}"


def _print_digest(name: str, digest: str, expected_digest: str | None) -> bool:
    """Prints a digest and compares it with the expected one, if any; returns whether it matches."""
    is_same = expected_digest is None or digest == expected_digest.lower()
    note = (
        ""
        if expected_digest is None
        else " as expected"
        if is_same
        else f", expected {expected_digest}"
    )
    print(f"{name} sha256 {digest}{note}")
    return is_same


def check_databases(options: Namespace) -> int:
    """Checks the databases and prints the digests; returns 0 if all is as expected, else 1."""
    try:
        files = list_databases(options.folder, options.rows)
        faults = list(filter(None, map(_describe_database_fault, files)))
        is_good = not faults
        print("\n".join([*faults, f"{len(files)} databases, {len(faults)} unreadable or empty"]))
        if options.archive is not None:
            is_good &= _print_digest(
                options.archive.name, hash_file(options.archive), ARCHIVE_SHA256
            )
        is_good &= _print_digest("databases", compute_databases_digest(files), options.expect)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(error) from error
    return 0 if is_good else 1
