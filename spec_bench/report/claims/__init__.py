"""The papers' claims, checked on our numbers: ``check_claims("rsd", rows, results)``.

A claim ``holds`` where the contrary, and ``does not hold`` where the claim would seldom give such
numbers; else it is ``within noise``, and without an interval ``not decided``. All checks that are
made at once are judged together (Holm): the chance of any false verdict among them is below 5%.
Equality needs a small difference, not merely an unseen one. Cells that a search only screened are
no evidence.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml

from spec_bench.report.claims.engine import checks_of
from spec_bench.report.claims.select import Scope, evident, measured
from spec_bench.report.claims.verdict import Check, judged
from spec_bench.report.data.counts import Records
from spec_bench.report.data.seeds import pooled
from spec_bench.report.papers.claim import read_claim
from spec_bench.report.papers.code import code_of
from spec_bench.report.papers.paper import load_paper

__all__ = ["Check", "check_claims", "check_generally"]


def check_claims(paper: str, rows: pd.DataFrame, results: Path) -> list[Check]:
    """Checks all of a paper's claims that the rows cover.

    Args:
        paper: a folder below ``experiments``, or another package's paper.
        rows: measured cells, one or several pairs and experiments; simulated acceptance is no
            evidence and is left out. Where there is a column ``file``, it names the results file
            of each row.
        results: the results file of rows without that column, with raw records beside it.

    Returns:
        One check per claim and task, none for unmeasured claims. A difference is paired by prompt
        where both cells' records are there, else it has no interval.

    Raises:
        ValueError: there is no such paper, or its claims cannot be read.
    """
    loaded = load_paper(paper)
    if rows.empty:
        return []
    records = Records(results)
    scope = Scope(measured(pooled(rows, records)), records, loaded.axes, loaded.folder)
    code_of(loaded.folder)  # registers the paper's claim functions
    checks = [
        replace(check, number=number)
        for number, claim in enumerate(loaded.claims)
        for check in checks_of(claim, scope.for_claim(claim))
    ]
    return judged(checks)


def check_generally(rows: pd.DataFrame, results: Path) -> list[Check]:
    """The general claims, which hold for any results file, checked."""
    text = Path(__file__).with_name("general.yaml").read_text(encoding="utf-8")
    claims = [read_claim(entry) for entry in yaml.safe_load(text)["claims"]]
    records = Records(results)
    scope = Scope(evident(pooled(rows, records)), records, {})
    return judged([check for claim in claims for check in checks_of(claim, scope)])
