"""Execution accuracy: the share of answers whose SQL has the result set of the reference.

Knows texts, the references' databases and processes that run SQL; nothing about tasks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from spec_bench.metrics.execution.process import SQL_LENGTH, Outcome, SqlProcess
from spec_bench.metrics.execution.result_sets import same_result
from spec_bench.metrics.execution.statement import first_statement, is_ordered, is_query
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import mean_interval
from spec_bench.records.sql_reference import SqlReference

REFERENCE_S = 60.0  # the benchmark's own limit, in its exec_eval.py
_MOST_ROWS = 200_000  # of a reference's result set
_SLOWER = 10.0  # an answer may also take this many times its reference's seconds

Verdict = Literal["right", "wrong", "error", "timeout"]


@dataclass(frozen=True)
class ExecutionAccuracy:
    """Runs answers and references and compares their result sets.

    Only the first statement of a text is run, and only if it just reads. A text without one scores
    0 and counts as an error, as does one that fails, is refused, exceeds a limit or crashes.

    Attributes:
        seconds: that an answer may take, besides ten times what its reference took.
    """

    seconds: float = 2.0

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Interval:
        """Mean over prompts, 0..1; see ``columns``."""
        return self.columns(predictions, references)["execution_accuracy"]

    def columns(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> dict[str, Interval]:
        """The accuracy, and how many answers did not run, or not in time.

        Args:
            predictions: the answers.
            references: of each prompt, ``SqlReference`` each.

        Raises:
            ValueError: unequal lengths, no prompts, a prompt without a reference or whose reference
                names no database or does not run.
        """
        if len(predictions) != len(references):
            raise ValueError(
                f"execution_accuracy: {len(predictions)} predictions but references for"
                f" {len(references)} prompts"
            )
        with SqlProcess() as process:
            verdicts = [
                self._best(process, prediction, _checked(golds, index))
                for index, (prediction, golds) in enumerate(
                    zip(predictions, references, strict=True)
                )
            ]
        right = [float(verdict == "right") for verdict in verdicts]
        return {
            "execution_accuracy": mean_interval(right),
            "execution_errors": Interval(float(verdicts.count("error"))),
            "execution_timeouts": Interval(float(verdicts.count("timeout"))),
        }

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """The rules in short."""
        return (
            f"execution_accuracy sqlite:{sqlite3.sqlite_version}|rows:multiset, list where the"
            f" reference orders|columns:any order|distinct:kept|limit:{self.seconds:g}s"
        )

    def _best(self, process: SqlProcess, prediction: str, golds: Sequence[SqlReference]) -> Verdict:
        """The verdict on one answer; matching any one of several references is enough."""
        verdict: Verdict = "error"
        for gold in golds:
            verdict = self._verdict(process, prediction, gold)
            if verdict == "right":
                break
        return verdict

    def _verdict(self, process: SqlProcess, prediction: str, gold: SqlReference) -> Verdict:
        """The verdict on one answer against one reference.

        Raises:
            ValueError: the reference does not run.
        """
        # A longer statement is refused anyway; there is no need to read all of it.
        statement = first_statement(prediction[: SQL_LENGTH + 1])
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
