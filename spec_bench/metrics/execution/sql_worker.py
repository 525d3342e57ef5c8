"""The process that runs untrusted SQL. A script: it imports the standard library only.

Reads one JSON object per line and writes one per line, until the input ends. A query may

* read: the connection is read-only and immutable; the authorizer allows SELECT and recursion,
  reading of the database's own tables, and functions that SQLite itself calls innocuous;
* use limited time: SQLite checks every few thousand instructions, and an unhandled alarm ends the
  process where SQLite does not check (a long call of LIKE or printf);
* use limited memory: of the process, of SQLite's heap, of a value, and of a result set.

It cannot open another file or write any: no attach, no extension, temporary results in memory, and
a system limit of 0 bytes on files that the process writes.
"""

import json
import os
import resource
import signal
import sqlite3
import sys
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

ALLOWED_ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE}
SCHEMA_TABLES = {"sqlite_master", "sqlite_schema"}
INNOCUOUS = 0x200000  # SQLITE_INNOCUOUS
INSTRUCTIONS = 2000  # of SQLite between two looks at the clock
VALUE_BYTES = 16  # size of a value without its text or blob
GRACE_S = 0.5  # after a query's own limit, before the alarm ends the process
SQLITE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


def limit_process(memory_bytes: int) -> None:
    """Sets limits on this process that nothing in it can raise again."""
    limits = {"RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 32, "RLIMIT_AS": memory_bytes}
    for name, maximum in limits.items():
        with suppress(AttributeError, ValueError, OSError):  # SQLite's own limits remain
            resource.setrlimit(getattr(resource, name), (maximum, maximum))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process


def list_innocuous_functions() -> set[str]:
    """Lists the names of the functions that a query may call."""
    with sqlite3.connect(":memory:") as connection:
        functions = connection.execute("SELECT name, flags FROM pragma_function_list").fetchall()
    connection.close()
    names = {name.lower() for name, flags in functions if flags & INNOCUOUS}
    return names | {name.lower() for name, _ in functions if name.startswith(("json", "->"))}


def open_database(path: str, allowed_functions: set[str], memory_bytes: int) -> sqlite3.Connection:
    """Opens a connection that can read the tables of a database and do nothing else. Raises
    sqlite3.Error if there is no database, or if its last writer did not close it.
    """
    for suffix in ("-wal", "-journal"):
        # An immutable connection ignores these files, so it would read a half-written database.
        if os.path.exists(path + suffix) and os.path.getsize(path + suffix):
            raise sqlite3.OperationalError(f"there is a {path}{suffix}: close the database first")
    uri = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=0)
    connection.text_factory = lambda data: data.decode(errors="ignore")  # as the benchmark does
    heap = f"hard_heap_limit = {memory_bytes // 4}"
    settings = ("query_only = ON", "trusted_schema = OFF", "temp_store = MEMORY", "mmap_size = 0")
    for pragma in (*settings, heap):
        connection.execute(f"PRAGMA {pragma}")
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    tables = {name.lower() for (name,) in rows} | SCHEMA_TABLES
    for limit, maximum in SQLITE_LIMITS.items():
        connection.setlimit(limit, maximum)

    def authorize(action: int, first_name: str | None, second: str | None, *_: str | None) -> int:
        is_allowed = action in ALLOWED_ACTIONS
        if action == sqlite3.SQLITE_READ:
            # A query that only counts rows reads no column, not even of tables that it defines.
            is_allowed = not second or (first_name or "").lower() in tables
        elif action == sqlite3.SQLITE_FUNCTION:
            is_allowed = (second or "").lower() in allowed_functions
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)
    return connection


def fetch_first_rows(
    cursor: sqlite3.Cursor, max_rows: int, max_bytes: int
) -> list[tuple[Any, ...]]:
    """Fetches the first rows of a result set. Raises ValueError if they exceed ``max_bytes``."""
    rows: list[tuple[Any, ...]] = []
    total_bytes = 0
    for row in islice(cursor, max_rows):
        sizes = (len(value) for value in row if isinstance(value, str | bytes))
        total_bytes += sum(sizes) + VALUE_BYTES * len(row)
        if total_bytes > max_bytes:
            raise ValueError(f"a result set of more than {max_bytes} bytes")
        rows.append(row)
    return rows


def run_query(
    request: dict[str, Any], allowed_functions: set[str], memory_bytes: int
) -> dict[str, Any]:
    """Runs a query: ``{"status": "ok", "rows": ...}``, or ``error`` or ``timeout`` and why."""
    began = time.monotonic()
    deadline = began + request["seconds"]
    connection = None
    try:
        connection = open_database(request["database"], allowed_functions, memory_bytes)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, INSTRUCTIONS)
        rows = fetch_first_rows(
            connection.execute(request["sql"]), request["max_rows"], memory_bytes // 32
        )
        reply = {"status": "ok", "rows": rows, "seconds": time.monotonic() - began}
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        reply = {"status": "error", "reason": str(error)}
    finally:
        if connection is not None:
            connection.close()
    if time.monotonic() > deadline:
        return {"status": "timeout", "reason": f"not done after {request['seconds']:g} s"}
    return reply


def main() -> None:
    """Answers queries until the input ends."""
    memory_bytes = int(sys.argv[1])
    functions = list_innocuous_functions()
    limit_process(memory_bytes)
    print(json.dumps({"status": "ready"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_S)
        try:
            reply = run_query(request, functions, memory_bytes)
            text = json.dumps(reply, default=lambda data: {"blob": data.hex()})
        except MemoryError:
            os._exit(1)  # this process cannot be trusted with another query
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(text, flush=True)


if __name__ == "__main__":
    main()
