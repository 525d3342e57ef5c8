"""Execution accuracy: the share of answers whose SQL has the result set of the reference.

The first statement of the text is run in another process (``sql_worker``), which reads databases
only. If a query ends the process, a new one takes its place; a query's result comes back as one
line of JSON. Result sets are compared by the rules of ``result_eq`` in ``exec_eval.py`` of Spider's
test-suite evaluation (Zhong et al., 2020, arXiv:2010.02840;
https://github.com/taoyds/test-suite-sql-eval), on one database, with DISTINCT kept. Knows texts and
the references' databases; nothing about tasks.
"""

import json
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spec_bench.metrics.execution import run_worker, split_fences
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.quality import SCORES, References, Score
from spec_bench.metrics.score_intervals import mean_interval
from spec_bench.records.types import SqlReference
from spec_bench.system.errors import UsageError

REFERENCE_S = 60.0  # the benchmark's own limit, in its exec_eval.py
_MAX_REFERENCE_ROWS = 200_000  # limit of a reference's result set
_REFERENCE_TIME_FACTOR = 10.0  # an answer may also take this many times its reference's seconds

_WORKER = Path(__file__).with_name("sql_worker.py")
_BATCH_PROMPTS = 50  # prompts of a batch, whose results are in memory together
_START_S = 30.0  # limit for the start of a process
_GRACE_S = 1.0  # after a query's own limit; the process ends itself earlier
_SQL_LENGTH = 100_000  # characters; SQLite's own limit in the worker is the same in bytes
# Some Pythons find SQLite through these.
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

# Limit of the rows compared while trying orders of columns. Only columns that agree as multisets
# are tried, and equal columns only once, so real results stay far below this limit.
_MAX_COMPARED_ROWS = 1_000_000

# A query begins a line, or follows a colon: "Here is the query: SELECT ...". It ends at a semicolon
# outside quotes and comments; unclosed quotes and comments run to the end, as in SQLite.
_QUERY = re.compile(
    r"""(?:^|:) (?:[ \t*`;] | /\*[^*\n]*\*/)*
    (?P<query> (?:select | values | with\s+(?:recursive\s+)?\w+\s*(?:\([^()]*\)\s*)?as)\b
    (?: '[^']*(?:'|\Z) | "[^"]*(?:"|\Z) | `[^`]*(?:`|\Z) | \[[^\]]*(?:\]|\Z)
    | --[^\n]* | /\*.*?(?:\*/|\Z) | [^;] )* )""",
    re.MULTILINE | re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_THIS_YEAR = re.compile(r"year\s*\(\s*curdate\s*\(\s*\)\s*\)", re.IGNORECASE)
# Some parsers put a blank inside these operators; the benchmark joins them before it runs a query.
_SPLIT_OPERATORS = (("> =", ">="), ("< =", "<="), ("! =", "!="))

Value = int | float | str | bytes | None
Row = tuple[Value, ...]
Verdict = Literal["right", "wrong", "error", "timeout"]


@dataclass(frozen=True)
class SqlQuery:
    """A read-only statement for a database."""

    database: Path
    sql: str
    seconds: float  # time limit
    max_rows: int  # number of rows that are fetched at most


@dataclass(frozen=True)
class QueryOutcome:
    """The outcome of a query."""

    status: Literal["ok", "error", "timeout"]  # error: refused, wrong, over a limit or a crash
    rows: tuple[Row, ...] = ()
    reason: str = ""  # why there are no rows
    seconds: float = 0.0  # duration if the status is ok


class ReferenceResult(NamedTuple):
    """A reference query with the outcome of running it."""

    index_in_batch: int  # index of its prompt in the batch
    gold: SqlReference
    outcome: QueryOutcome


@SCORES("execution_accuracy")
@dataclass(frozen=True)
class SqlExecutionAccuracy(Score):
    """Runs answers and references and compares their result sets.

    A text without a query scores 0 and counts as an error, as does a query that fails, is refused,
    exceeds a limit or crashes. A prompt's references are ``SqlReference``; an answer needs to match
    one of them.
    """

    name = "execution_accuracy"
    # time limit of an answer, to which ten times the duration of its reference is added
    seconds: float = 2.0

    def columns(self, predictions: Sequence[str], references: References) -> dict[str, Interval]:
        """Computes the accuracy, 0..1, and the numbers of answers that failed to run or timed out.
        Raises UsageError for unequal lengths, or as ``check`` does.
        """
        self.check_given(len(predictions), references)
        verdicts: list[Verdict] = []
        for begin, expected in self._run_references_in_batches(references):
            verdicts += self._judge_answers(predictions[begin : begin + _BATCH_PROMPTS], expected)
        return {
            self.name: mean_interval([float(verdict == "right") for verdict in verdicts]),
            "execution_errors": Interval(float(verdicts.count("error"))),
            "execution_timeouts": Interval(float(verdicts.count("timeout"))),
        }

    def signature(self, references: References) -> str:
        """Returns SQLite's version, the rules of comparison and the time limit as text."""
        return (
            f"execution_accuracy sqlite:{sqlite3.sqlite_version}|rows:multiset, list where the"
            f" reference orders|columns:any order|distinct:kept|limit:{self.seconds:g}s"
        )

    def check(self, references: References) -> None:
        """Runs every reference. Raises UsageError if a prompt has no reference, or if a reference
        names no database, does not run on it, or has more rows than can be compared.
        """
        for _ in self._run_references_in_batches(references):
            pass

    def _run_references_in_batches(
        self, references: References
    ) -> Iterator[tuple[int, list[ReferenceResult]]]:
        """Runs the references of ``_BATCH_PROMPTS`` prompts at a time, since all results would take
        too much memory; yields the first prompt's index and the references with their outcomes.
        """
        self.check_given(len(references), references)
        for begin in range(0, len(references), _BATCH_PROMPTS):
            gold_queries = []
            queries = []
            for place, golds in enumerate(references[begin : begin + _BATCH_PROMPTS]):
                for gold in golds:
                    if not isinstance(gold, SqlReference):
                        index = begin + place
                        raise UsageError(
                            f"{self.name}: a reference of prompt {index} names no database"
                        )
                    statement = extract_query(gold)
                    if not statement:
                        raise _make_reference_error(gold, "it is no query")
                    gold_queries.append((place, gold))
                    queries.append(
                        SqlQuery(gold.database, statement, REFERENCE_S, _MAX_REFERENCE_ROWS)
                    )
            expected = []
            for (place, gold), outcome in zip(gold_queries, run_queries(queries), strict=True):
                if outcome.status != "ok" or len(outcome.rows) == _MAX_REFERENCE_ROWS:
                    raise _make_reference_error(
                        gold, outcome.reason or f"{_MAX_REFERENCE_ROWS} rows and more"
                    )
                expected.append(ReferenceResult(place, gold, outcome))
            yield begin, expected

    def _judge_answers(
        self, predictions: Sequence[str], expected: Sequence[ReferenceResult]
    ) -> list[Verdict]:
        # A longer statement is refused anyway; there is no need to read all of it.
        statements = [extract_query(text[: _SQL_LENGTH + 1]) for text in predictions]
        answered = [reference for reference in expected if statements[reference.index_in_batch]]
        queries = [
            # One row more than the reference's is enough to detect that there are too many.
            SqlQuery(
                gold.database,
                statements[place],
                seconds=self.seconds + _REFERENCE_TIME_FACTOR * outcome.seconds,
                max_rows=len(outcome.rows) + 1,
            )
            for place, gold, outcome in answered
        ]
        verdicts: list[Verdict] = ["error"] * len(predictions)
        for (place, gold, outcome), got in zip(answered, run_queries(queries), strict=True):
            if verdicts[place] == "right":
                continue
            order_matters = "order by" in gold.lower()  # anywhere, as in the benchmark
            is_same = got.status == "ok" and is_same_result(outcome.rows, got.rows, order_matters)
            verdicts[place] = "right" if is_same else "wrong" if got.status == "ok" else got.status
        return verdicts


def _make_reference_error(gold: SqlReference, reason: str) -> ValueError:
    return UsageError(
        f"execution_accuracy: the reference {str(gold)!r} does not run on {gold.database}: {reason}"
    )


def run_queries(queries: Sequence[SqlQuery], memory_bytes: int = 1 << 30) -> list[QueryOutcome]:
    """Runs queries one after another in a worker process with at most ``memory_bytes``.

    If the process ends, by its own alarm or by a crash, a new process runs the remaining queries.
    Raises RuntimeError if a process does not start.
    """
    outcomes: list[QueryOutcome] = []
    while remaining := queries[len(outcomes) :]:
        requests = [
            {**asdict(query), "database": str(query.database.resolve())} for query in remaining
        ]  # absolute: the process runs in another folder
        text = "".join(f"{json.dumps(query)}\n" for query in requests)
        limit_s = _START_S + sum(query.seconds + _GRACE_S for query in remaining)
        process = run_worker(
            _WORKER, text, limit_s, str(memory_bytes), inherited_variables=_INHERITED_VARIABLES
        )
        ready, *lines = process.stdout[: process.stdout.rfind(b"\n") + 1].splitlines() or [b""]
        if not ready:
            raise RuntimeError("the process that runs SQL does not start")
        for line in lines:
            reply = json.loads(line)
            reply["rows"] = tuple(tuple(map(_decode_value, row)) for row in reply.get("rows", ()))
            outcomes.append(QueryOutcome(**reply))
        if len(lines) == len(remaining):
            break
        if process.returncode == -signal.SIGALRM:
            reason = f"killed after {remaining[len(lines)].seconds:g} s"
            outcomes.append(QueryOutcome("timeout", reason=reason))
        else:
            outcomes.append(
                QueryOutcome("error", reason=f"the process died with status {process.returncode}")
            )
    return outcomes


def _decode_value(value: Any) -> Value:
    """Decodes a value of a row; a blob is in JSON as hexadecimal text."""
    return bytes.fromhex(value["blob"]) if isinstance(value, dict) else value


def extract_query(text: str) -> str:
    """Extracts an answer's first query, without its semicolon; "" if there is none. The query is in
    a fence, or follows words and ends at a blank line; the benchmark's own script runs the whole
    text.
    """
    fenced_pieces, other_pieces = split_fences(text)
    candidates = [match["query"] for match in map(_QUERY.search, fenced_pieces) if match]
    candidates += [
        match["query"].partition("\n\n")[0] for match in map(_QUERY.search, other_pieces) if match
    ]
    query = _THIS_YEAR.sub("2020", candidates[0]) if candidates else ""  # as the benchmark does
    for split, operator in _SPLIT_OPERATORS:
        query = query.replace(split, operator)
    return query.strip("` \n")


def is_same_result(expected: Sequence[Row], got: Sequence[Row], order_matters: bool) -> bool:
    """Returns whether two result sets are the same: Spider's execution match.

    * Two empty results are equal, whatever their columns.
    * Otherwise both have as many rows and as many columns, and some order of the second's columns
      makes the rows equal: as a list where order matters, as a multiset where it does not.
    * Numbers are equal by value (1 and 1.0), without a tolerance; text is equal letter by letter
      and never equals a number or a blob; NULL equals NULL.
    """
    if not expected and not got:
        return True
    if len(expected) != len(got) or len(expected[0]) != len(got[0]):
        return False
    column_multiset = Counter(zip(*got, strict=True))  # columns, some of which may be equal
    column_counts = [(column, Counter(column)) for column in column_multiset]
    expected_counts = map(Counter, zip(*expected, strict=True))
    choices = [
        [column for column, count in column_counts if count == expected_count]
        for expected_count in expected_counts
    ]
    for columns in islice(product(*choices), _MAX_COMPARED_ROWS // len(expected)):
        rows = list(zip(*columns, strict=True))
        is_same = rows == list(expected) if order_matters else Counter(rows) == Counter(expected)
        if is_same and Counter(columns) == column_multiset:
            return True
    return False
