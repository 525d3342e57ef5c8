"""Checks the papers' claims on our numbers: ``check_claims("rsd", rows, results)``.

A claim ``holds`` if such numbers are unlikely when it is false, and ``does not hold`` if they are
unlikely when it is true. Otherwise it is ``within noise``, or ``not decided`` without an interval.
A paper's claims on one pair of models are judged together (Holm), and so are our own checks: the
chance of any false verdict among them is below 5%. A claim that is decided on its own, but not
after this correction, is ``shown alone`` or ``contradicted alone``.

Equality needs a difference that is shown to be small; it is not enough that none is seen. Screened
cells are no evidence. A paper's claims are the functions of its ``claims.py``, written with
``ask``.
"""

import traceback
from dataclasses import replace
from pathlib import Path

import pandas as pd

from spec_bench.report.claims import general
from spec_bench.report.claims.ask import ClaimQuery
from spec_bench.report.claims.verdict import NOT_COMPARABLE, Check, correct_verdicts
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.seeds import pool_seeds
from spec_bench.report.papers.paper import load_paper
from spec_bench.settings.fields import describe_error
from spec_bench.system.errors import UsageError

__all__ = [
    "Check",
    "check_claims",
    "check_general_claims",
    "drop_failed_simulated_screened",
    "drop_screened_rows",
]


def check_claims(paper: str, rows: pd.DataFrame, results: Path | RecordReader) -> list[Check]:
    """Checks all of a paper's claims that the rows cover: one check per claim and task, none for
    unmeasured claims.

    The rows are measured cells, of any pairs and experiments; simulated acceptance is no evidence
    and is left out. A difference is paired by prompt if both cells have records, else it has no
    interval. The records belong to the row's ``file``; ``results`` is this file for rows without
    such a column, or a reader of the records. Raises UsageError if there is no such paper, or if
    its claims cannot be read.
    """
    settings_of_paper = load_paper(paper)
    claims = settings_of_paper.claims
    if rows.empty:
        return []
    records = results if isinstance(results, RecordReader) else RecordReader(results)
    ask = ClaimQuery(
        drop_failed_simulated_screened(pool_seeds(rows, records)),
        records,
        settings_of_paper.trees_by_axis,
    )
    checks = []
    for number, claim in enumerate(claims):
        try:
            claim_checks = list(claim.function(ask))
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:2]  # the claim's own frame
            location = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in frames)
            place = f"claim {claim.function.__name__} of {paper}{location}"
            raise UsageError(f"{place}: {describe_error(error)}") from error
        checks += [
            replace(check, statement=claim.statement, section=claim.section, number=number)
            for check in claim_checks
        ]
    if records.printed:  # printed numbers are judged without chance, one by one
        judged_alone = (
            correct_verdicts([frame])[0] for frame in checks if frame.verdict != NOT_COMPARABLE
        )
        return [replace(frame, p_values=None) for frame in judged_alone]
    return correct_verdicts(checks)


def check_general_claims(rows: pd.DataFrame, results: Path | RecordReader) -> list[Check]:
    """Checks the general claims, which apply to any results file."""
    records = results if isinstance(results, RecordReader) else RecordReader(results)
    return correct_verdicts(
        list(
            general.iter_general_checks(
                ClaimQuery(drop_screened_rows(pool_seeds(rows, records)), records)
            )
        )
    )


def drop_failed_simulated_screened(rows: pd.DataFrame) -> pd.DataFrame:
    """Selects rows that are evidence: not failed, not of simulated acceptance, not screened."""
    return drop_screened_rows(rows[(rows.status != "failed") & (rows.lossless != "simulated")])


def drop_screened_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Drops rows that a search only screened: many cells on few prompts, to select some of them."""
    return rows[rows.stage != "screen"] if "stage" in rows else rows
