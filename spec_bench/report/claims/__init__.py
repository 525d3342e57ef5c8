"""What the papers find, checked on our own numbers: ``check_claims("rsd", rows, results)``.

A claim ``holds`` where its 95% interval excludes the contrary, ``does not hold`` where it excludes
the claim, and is ``within noise`` else. A claim that two things are equal holds where the interval
of their difference includes 0, so its width says how much was seen. No correction is made for the
number of tests; each says how many there are, and one in twenty may miss by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from spec_bench.report.claims.check import Check
from spec_bench.report.claims.dsbd import dsbd_claims
from spec_bench.report.claims.mcsd import mcsd_claims
from spec_bench.report.claims.records import Records
from spec_bench.report.claims.redrafter import redrafter_claims
from spec_bench.report.claims.rsd import rsd_claims

CLAIMS: dict[str, Callable[[pd.DataFrame, Records], list[Check]]] = {
    "rsd": rsd_claims,
    "mcsd": mcsd_claims,
    "dsbd": dsbd_claims,
    "redrafter": redrafter_claims,
}
"""The papers whose claims are known, and who checks them."""


def check_claims(paper: str, rows: pd.DataFrame, results: Path) -> list[Check]:
    """All of a paper's claims that the rows can speak to.

    Args:
        paper: a key of ``CLAIMS``.
        rows: measured cells, one or several pairs and experiments; simulated acceptance is no
            evidence and is left out. Where there is a column ``file``, it names the results file
            of each row.
        results: the results file of rows without that column; raw records are looked for beside.

    Returns:
        One check per claim and task, none where nothing was measured for a claim. A difference
        is paired by prompt where both cells' records are there, else it comes from the cells' own
        intervals and is marked ``unpaired``.

    Raises:
        ValueError: no claims of that paper are known.
    """
    if paper not in CLAIMS:
        raise ValueError(f"no claims of paper {paper!r}; there are: {', '.join(CLAIMS)}")
    if rows.empty:
        return []
    measured = rows[(rows.status != "failed") & (rows.lossless != "simulated")]
    checks = CLAIMS[paper](measured, Records(results))
    count = f"1 of {len(checks)} tests"
    return [replace(check, evidence=f"{check.evidence}; {count}") for check in checks]
