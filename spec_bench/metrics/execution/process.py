"""Our end of the process that runs SQL: asks, waits, kills, starts the next one.

All that reaches this process from a query is a line of JSON: rows of numbers and texts.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from spec_bench.metrics.execution.result_sets import Row, Value

_WORKER = Path(__file__).with_name("worker.py")
_START_S = 30.0  # until a new process says that it is ready
_GRACE_S = 1.0  # after a query's own limit; the process ends itself before that
SQL_LENGTH = 100_000  # characters; SQLite's own limit in the worker is the same in bytes
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # where a Python may need its SQLite from


@dataclass(frozen=True)
class Outcome:
    """What became of one query."""

    status: Literal["ok", "error", "timeout"]  # error: refused, wrong, over a limit or a crash
    rows: tuple[Row, ...] = ()
    reason: str = ""  # why there are no rows
    seconds: float = 0.0  # that an ok query took


class SqlProcess:
    """Runs queries one after another in one process, which is replaced if it had to be killed."""

    def __init__(self, memory_bytes: int = 1 << 30) -> None:
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SqlProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process; the next query starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def run(self, database: Path, sql: str, seconds: float, rows: int) -> Outcome:
        """Runs one statement on a database that is only read, for so many seconds at most; of the
        result set only so many rows are computed.
        """
        if len(sql) > SQL_LENGTH:
            return Outcome("error", reason=f"a statement of {len(sql)} characters")
        where = str(database.resolve())  # the process runs elsewhere
        request = {"database": where, "sql": sql, "seconds": seconds, "rows": rows}
        process = self._started()
        reply = _ask(process, json.dumps(request).encode() + b"\n", seconds + _GRACE_S)
        if reply:
            return _outcome(json.loads(reply))
        # No line in time, or the end of its output, soon followed by its own end.
        ended_by = None if reply is None else process.wait(_START_S)
        self.close()
        if ended_by in (None, -signal.SIGALRM):
            return Outcome("timeout", reason=f"killed after {seconds:g} s")
        return Outcome("error", reason=f"the process died with status {ended_by}")

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, a new one if there is none.

        Raises:
            RuntimeError: it does not start.
        """
        if self._process is None:
            # -I, -S: no user's folder, environment or package can change what the script imports.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_WORKER), str(self._memory_bytes)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                start_new_session=True,  # an interrupt is ours to handle
            )  # fmt: skip
            if not _ask(self._process, b"", _START_S):
                self.close()
                raise RuntimeError("the process that runs SQL does not start")
        return self._process


def _ask(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes | None:
    """Sends a line and reads one; None after that many seconds, b"" if the process ended."""
    assert process.stdin is not None and process.stdout is not None
    deadline = time.monotonic() + seconds
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not parts or not parts[-1].endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                return b""
            parts.append(part)
    return b"".join(parts)


def _outcome(reply: dict[str, Any]) -> Outcome:
    """The process's answer as a record."""
    rows = tuple(tuple(map(_value, row)) for row in reply.get("rows", ()))
    return Outcome(reply["status"], rows, reply.get("reason", ""), reply.get("seconds", 0.0))


def _value(value: Any) -> Value:
    """A value of a row; JSON has no blobs."""
    return bytes.fromhex(value["blob"]) if isinstance(value, dict) else value
