"""Checks Spider's databases: ``spec-bench spider FOLDER``.

FOLDER holds ``<db_id>/<db_id>.sqlite``. Every database is opened read-only and its tables counted;
with ``--rows dev.json`` only the databases that those rows name are wanted, and one that is missing
is an error. The last line is a SHA-256 over the databases' names and contents, the same that
``sha256sum */*.sqlite | sha256sum`` prints in FOLDER (with LC_ALL=C, where all of them are wanted);
a cell's ``cell.json`` states that of the databases its prompts ask, as ``examples.databases``.

Spider's authors publish no digest. The hub's dataset HAL-9001/spider-databases publishes one of the
archive (205,800,266 bytes), which it says is the file of Spider's own download; ``--archive
spider_data.zip`` compares with that. Of the unpacked databases we know of none; ``--expect DIGEST``
compares with one that you have from elsewhere.
"""

import hashlib
import sqlite3
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

from spec_bench.settings.arguments import Parser
from spec_bench.system.errors import UsageError
from spec_bench.system.files import file_digest
from spec_bench.tasks.prompt_files import iter_row_makers

# The card of https://huggingface.co/datasets/HAL-9001/spider-databases
ARCHIVE_SHA256 = "00636695dabed6b5f4b8328a16b13e069a2f16591d5efcce57660669c85b121b"


def database_file(folder: Path, database_id: str) -> Path:
    """Where Spider's layout keeps a database: ``<folder>/<id>/<id>.sqlite``. Raises ValueError: no
    such file; the message lists the databases that are there.
    """
    file = folder / database_id / f"{database_id}.sqlite"
    if not file.is_file():
        there = sorted(path.parent.name for path in folder.glob("*/*.sqlite"))
        raise UsageError(f"no database {file}; found {', '.join(there) or 'none'}")
    return file


def databases_digest(databases: Iterable[Path]) -> str:
    """SHA-256, in hex, over the databases' names and contents, whatever their order and folder.

    It is the digest of the lines ``<sha256 of the file>  <id>/<id>.sqlite`` sorted by name: what
    ``sha256sum */*.sqlite | sha256sum`` prints in the folder that holds them, under LC_ALL=C.
    """
    named = {f"{file.parent.name}/{file.name}": file for file in databases}
    lines = [f"{file_digest(named[name])}  {name}\n" for name in sorted(named)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


SCHEMA_LINE = "{table}({columns})"


@cache
def schema_text(file: Path, line: str = SCHEMA_LINE) -> str:
    """Returns one ``line`` for each table, ``table(column, column)``, in the order of creation."""
    # A file: URI with mode=ro neither creates nor changes the database.
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            " ORDER BY rowid"
        ).fetchall()
        asked = "SELECT name FROM pragma_table_info(?) ORDER BY cid"
        columns = {table: connection.execute(asked, (table,)).fetchall() for (table,) in tables}
    return "\n".join(
        line.format(table=table, columns=", ".join(name for (name,) in names))
        for table, names in columns.items()
    )


def list_files(folder: Path, rows: Path | None) -> list[Path]:
    """The databases to check, sorted by name: those of the rows of a JSON list, or of a file of
    JSON lines; all where no rows are given. Raises ValueError: there is none, or one that the rows
    name is missing.
    """
    if rows is not None:
        names = {make()["db_id"] for make in iter_row_makers(rows, "--rows")}
        return [database_file(folder, name) for name in sorted(names)]
    files = sorted(folder.glob("*/*.sqlite"))
    if not files:
        raise UsageError(f"no database in {folder}: expected <db_id>/<db_id>.sqlite")
    return files


def _fault(file: Path) -> str:
    """Returns what is wrong with a database; "" where nothing is."""
    try:
        return "" if schema_text(file) else f"{file}: no tables"
    except sqlite3.Error as error:
        return f"{file}: {error}"


def _compare(what: str, digest: str, expected: str | None) -> bool:
    """Prints a digest and, where one is expected, whether it is that."""
    same = expected is None or digest == expected.lower()
    said = "" if expected is None else " as expected" if same else f", expected {expected}"
    print(f"{what} sha256 {digest}{said}")
    return same


def main(arguments: Sequence[str]) -> int:
    """0 where all is as expected, 1 where it is not, 2 where there is nothing to check."""
    parser = Parser(prog="spec-bench spider")
    parser.add_argument("folder", type=Path, help="holds <db_id>/<db_id>.sqlite")
    parser.add_argument("--rows", type=Path, help="JSON or JSONL rows: only the databases they ask")
    parser.add_argument("--expect", help="digest that the databases should have")
    parser.add_argument("--archive", type=Path, help="spider_data.zip, to compare with its digest")
    chosen = parser.parse_args(list(arguments))
    try:
        files = list_files(chosen.folder, chosen.rows)
        faults = list(filter(None, map(_fault, files)))
        good = not faults
        print("\n".join([*faults, f"{len(files)} databases, {len(faults)} unreadable or empty"]))
        if chosen.archive is not None:
            good &= _compare(chosen.archive.name, file_digest(chosen.archive), ARCHIVE_SHA256)
        good &= _compare("databases", databases_digest(files), chosen.expect)
    except (OSError, ValueError, KeyError) as error:
        print(f"spec-bench spider: {error}", file=sys.stderr)
        return 2
    return 0 if good else 1
