"""The papers' claims, checked on our numbers: ``check_claims("rsd", rows, results)``.

A claim ``holds`` where the contrary, and ``does not hold`` where the claim would seldom give such
numbers; else it is ``within noise``, and without an interval ``not decided``. A paper's claims on
one pair of models are judged together (Holm), and so are our own checks: the chance of any false
verdict among them is below 5%. What only a correction keeps from them is ``shown alone``, or
``contradicted alone``.
Equality needs a small difference, not merely an unseen one. Screened cells are no evidence. A
paper's claims are the functions of its ``claims.py``, in the words of ``ask``.
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
    "drop_screened_rows",
    "select_evidence_rows",
]


def check_claims(paper: str, rows: pd.DataFrame, results: Path | RecordReader) -> list[Check]:
    """Checks all of a paper's claims that the rows cover: one check per claim and task, none for
    unmeasured claims.

    The rows are measured cells, of one or several pairs and experiments; simulated acceptance is no
    evidence and is left out. A difference is paired by prompt where both cells' records are there,
    else it has no interval. They are beside the row's ``file``; ``results`` is that of rows without
    such a column, or their records. Raises ValueError: there is no such paper, or its claims cannot
    be read.
    """
    settings_of_paper = load_paper(paper)
    claims = settings_of_paper.claims
    if rows.empty:
        return []
    records = results if isinstance(results, RecordReader) else RecordReader(results)
    ask = ClaimQuery(
        select_evidence_rows(pool_seeds(rows, records)), records, settings_of_paper.trees_by_axis
    )
    checks = []
    for number, claim in enumerate(claims):
        try:
            claim_checks = list(claim.function(ask))
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:2]  # the claim's own
            location = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in frames)
            place = f"claim {claim.function.__name__} of {paper}{location}"
            raise UsageError(f"{place}: {describe_error(error)}") from error
        checks += [
            replace(check, statement=claim.statement, section=claim.section, number=number)
            for check in claim_checks
        ]
    if records.printed:  # no chance is in them
        alone = (
            correct_verdicts([frame])[0] for frame in checks if frame.verdict != NOT_COMPARABLE
        )
        return [replace(frame, p_values=None) for frame in alone]
    return correct_verdicts(checks)


def check_general_claims(rows: pd.DataFrame, results: Path | RecordReader) -> list[Check]:
    """Returns the general claims, which hold for any results file, checked."""
    records = results if isinstance(results, RecordReader) else RecordReader(results)
    return correct_verdicts(
        list(
            general.iter_general_checks(
                ClaimQuery(drop_screened_rows(pool_seeds(rows, records)), records)
            )
        )
    )


def select_evidence_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are evidence: neither failed nor with simulated acceptance, nor screened."""
    return drop_screened_rows(rows[(rows.status != "failed") & (rows.lossless != "simulated")])


def drop_screened_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that no search only screened: many cells on few prompts, to pick some of them."""
    return rows[rows.stage != "screen"] if "stage" in rows else rows
