"""Execution accuracy: the share of answers whose SQL has the result set of the reference.

The text's first statement is run, if it just reads, in a process of its own (``sql_worker``), which
is killed and replaced when it does not end; all that comes back is a line of JSON. Result sets are
compared by the rules of ``result_eq`` in ``exec_eval.py`` of Spider's test-suite evaluation (Zhong
et al., 2020, arXiv:2010.02840; https://github.com/taoyds/test-suite-sql-eval), on one database,
with DISTINCT kept. Knows texts and the references' databases; nothing about tasks.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import mean_interval
from spec_bench.records.types import SqlReference

REFERENCE_S = 60.0  # the benchmark's own limit, in its exec_eval.py
_MOST_ROWS = 200_000  # of a reference's result set
_SLOWER = 10.0  # an answer may also take this many times its reference's seconds

_WORKER = Path(__file__).with_name("sql_worker.py")
_START_S = 30.0  # until a new process says that it is ready
_GRACE_S = 1.0  # after a query's own limit; the process ends itself before that
_SQL_LENGTH = 100_000  # characters; SQLite's own limit in the worker is the same in bytes
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # where a Python may need its SQLite from

# Most rows compared while orders of columns are tried. Columns must agree as multisets before they
# are tried, and equal columns are tried once, so results of queries stay far below this.
_MOST_COMPARED = 5_000_000

# Unclosed quotes and comments run to the end of the text, as SQLite's own scanner takes them.
_TOKEN = re.compile(
    r"""
    (?P<skip>   \s+ | --[^\n]* | /\*.*?(?:\*/|\Z) )
  | (?P<quoted> '[^']*(?:'|\Z) | "[^"]*(?:"|\Z) | `[^`]*(?:`|\Z) | \[[^\]]*(?:\]|\Z) )
  | (?P<word>   \w+ )
  | (?P<mark>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
# Some parsers' output has a blank inside these; the benchmark joins them before it runs a query.
_SPLIT_OPERATORS = (("> =", ">="), ("< =", "<="), ("! =", "!="))

Value = int | float | str | bytes | None
Row = tuple[Value, ...]
Verdict = Literal["right", "wrong", "error", "timeout"]


@dataclass(frozen=True)
class ExecutionAccuracy:
    """Runs answers and references and compares their result sets.

    A text without a statement that reads scores 0 and counts as an error, as does one that fails,
    is refused, exceeds a limit or crashes.
    """

    seconds: float = 2.0  # that an answer may take, besides ten times what its reference took

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Interval:
        """Mean over prompts, 0..1; see ``columns``."""
        return self.columns(predictions, references)["execution_accuracy"]

    def columns(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> dict[str, Interval]:
        """The accuracy, and how many answers did not run, or not in time; references of each prompt
        are ``SqlReference``, of which matching any one is enough.

        Raises:
            ValueError: unequal lengths, no prompts, a prompt without a reference or whose reference
                names no database or does not run.
        """
        if len(predictions) != len(references):
            raise ValueError(
                f"execution_accuracy: {len(predictions)} predictions but references for"
                f" {len(references)} prompts"
            )
        verdicts: list[Verdict] = []
        with SqlProcess() as process:
            for index, (prediction, golds) in enumerate(zip(predictions, references, strict=True)):
                verdict: Verdict = "error"
                for gold in _checked(golds, index):
                    verdict = self._verdict(process, prediction, gold)
                    if verdict == "right":
                        break
                verdicts.append(verdict)
        return {
            "execution_accuracy": mean_interval([float(each == "right") for each in verdicts]),
            "execution_errors": Interval(float(verdicts.count("error"))),
            "execution_timeouts": Interval(float(verdicts.count("timeout"))),
        }

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """The rules in short."""
        return (
            f"execution_accuracy sqlite:{sqlite3.sqlite_version}|rows:multiset, list where the"
            f" reference orders|columns:any order|distinct:kept|limit:{self.seconds:g}s"
        )

    def _verdict(self, process: SqlProcess, prediction: str, gold: SqlReference) -> Verdict:
        # A longer statement is refused anyway; there is no need to read all of it.
        statement = first_statement(prediction[: _SQL_LENGTH + 1])
        if not is_query(statement):
            return "error"
        wanted = _wanted(process, gold)
        limit_s = self.seconds + _SLOWER * wanted.seconds
        # One row more than the reference has is enough to tell that there are too many.
        got = process.run(gold.database, statement, limit_s, len(wanted.rows) + 1)
        if got.status != "ok":
            return got.status
        ordered = is_ordered(first_statement(gold))
        return "right" if same_result(wanted.rows, got.rows, ordered) else "wrong"


def check_sql(references: Sequence[Sequence[str]]) -> None:
    """Makes sure that every reference can be scored against, before anything is decoded.

    Raises:
        ValueError: a prompt without a reference, or whose reference names no database or does not
            run on it.
    """
    with SqlProcess() as process:
        for index, golds in enumerate(references):
            for gold in _checked(golds, index):
                _wanted(process, gold)


def _wanted(process: SqlProcess, gold: SqlReference) -> Outcome:
    """The result set of a reference.

    Raises:
        ValueError: it does not run, or has more rows than can be compared.
    """
    statement = first_statement(gold)
    wanted = Outcome("error", reason="it is no query")
    if is_query(statement):
        wanted = process.run(gold.database, statement, REFERENCE_S, _MOST_ROWS)
    if wanted.status != "ok" or len(wanted.rows) == _MOST_ROWS:
        reason = wanted.reason or f"{_MOST_ROWS} rows and more"
        raise ValueError(
            f"execution_accuracy: the reference {str(gold)!r} does not run on {gold.database}:"
            f" {reason}"
        )
    return wanted


def _checked(golds: Sequence[str], index: int) -> list[SqlReference]:
    """The references of one prompt.

    Raises:
        ValueError: none, or one that names no database.
    """
    if isinstance(golds, str):
        raise ValueError(f"execution_accuracy: references of prompt {index} must be a list")
    if not golds:
        raise ValueError(f"execution_accuracy: prompt {index} has no reference")
    usable = [gold for gold in golds if isinstance(gold, SqlReference)]
    if len(usable) < len(golds):
        raise ValueError(f"execution_accuracy: a reference of prompt {index} names no database")
    return usable


def first_statement(text: str) -> str:
    """The first non-empty statement, without its semicolon; "" if there is none."""
    for split, whole in _SPLIT_OPERATORS:
        text = text.replace(split, whole)
    begin = None
    for kind, token, position in _tokens(text):
        if kind == "mark" and token == ";":
            if begin is not None:
                return text[begin:position].strip()
        elif begin is None:
            begin = position
    return "" if begin is None else text[begin:].strip()


def is_query(statement: str) -> bool:
    """Whether a statement begins as one that only reads."""
    first = next((token.lower() for _, token, _ in _tokens(statement)), "")
    return first in {"select", "with", "values"}


def is_ordered(statement: str) -> bool:
    """Whether the statement's own rows are ordered; a subquery's or a window's order is not that.

    Spider's own script takes any ``order by`` in the text of the reference.
    """
    depth, previous = 0, ""
    for kind, token, _ in _tokens(statement):
        depth += (token == "(") - (token == ")")
        word = token.lower() if kind == "word" and depth == 0 else ""
        if (previous, word) == ("order", "by"):
            return True
        previous = word
    return False


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and position of everything but blanks and comments."""
    for match in _TOKEN.finditer(text):
        if match.lastgroup not in (None, "skip"):
            yield str(match.lastgroup), match.group(), match.start()


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

    def __exit__(self, *error: object) -> None:
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
        if len(sql) > _SQL_LENGTH:
            return Outcome("error", reason=f"a statement of {len(sql)} characters")
        where = str(database.resolve())  # the process runs elsewhere
        request = {"database": where, "sql": sql, "seconds": seconds, "rows": rows}
        process = self._started()
        answer = _ask(process, json.dumps(request).encode() + b"\n", seconds + _GRACE_S)
        if answer:
            reply = json.loads(answer)
            found = tuple(tuple(map(_value, row)) for row in reply.get("rows", ()))
            return Outcome(
                reply["status"], found, reply.get("reason", ""), reply.get("seconds", 0.0)
            )
        # No line in time, or the end of its output, soon followed by its own end.
        ended_by = None if answer is None else process.wait(_START_S)
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


def _value(value: Any) -> Value:
    """A value of a row; JSON has no blobs."""
    return bytes.fromhex(value["blob"]) if isinstance(value, dict) else value


def same_result(wanted: Sequence[Row], got: Sequence[Row], order_matters: bool) -> bool:
    """Whether two result sets are the same: Spider's execution match.

    * Two empty results are equal, whatever their columns.
    * Otherwise both have as many rows and as many columns, and some order of the second's columns
      makes the rows equal: as a list where order matters, as a multiset where it does not.
    * Numbers are equal by value (1 and 1.0), without a tolerance; text is equal letter by letter
      and never equals a number or a blob; NULL equals NULL.
    """
    if not wanted and not got:
        return True
    if len(wanted) != len(got) or len(wanted[0]) != len(got[0]):
        return False
    theirs, ours = list(zip(*wanted, strict=True)), list(zip(*got, strict=True))
    counts = [Counter(column) for column in ours]
    choices = [[n for n, c in enumerate(counts) if c == want] for want in map(Counter, theirs)]
    left = max(_MOST_COMPARED, 2 * len(theirs) * len(wanted))

    def fits(chosen: tuple[int, ...]) -> bool:
        """Whether the rows, cut to these columns, are equal."""
        columns = [ours[column] for column in chosen]
        if order_matters:
            return columns[-1] == theirs[len(chosen) - 1]  # those before it were compared before
        cut = zip(*theirs[: len(chosen)], strict=True)
        return Counter(zip(*columns, strict=True)) == Counter(cut)

    def completes(chosen: tuple[int, ...]) -> bool:
        """Whether the columns chosen for the first of theirs can be completed."""
        nonlocal left
        if len(chosen) == len(theirs):
            return True
        tried: list[Row] = []
        for column in choices[len(chosen)]:
            if column in chosen or ours[column] in tried:
                continue
            tried.append(ours[column])
            left -= len(wanted)
            if left < 0:
                return False
            if fits((*chosen, column)) and completes((*chosen, column)):
                return True
        return False

    return completes(())
