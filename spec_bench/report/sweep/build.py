"""The sweep's page: one HTML file that works offline, plotly.js compressed inside it.

The same results give the same bytes: no time, no random names, and the embedded data are sorted
as the results are.
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import prompts_of, read_from, read_rows
from spec_bench.report.data.seeds import pooled
from spec_bench.report.page.build import measured_on, render
from spec_bench.report.page.gather import origins_of
from spec_bench.report.sweep.figures import DETAILED, FIGURES, SHOWN, Figure, Part, drawn, parts_of


@dataclass(frozen=True)
class Sweep:
    """The data of a page, or of a report with the same contents."""

    rows: pd.DataFrame  # the cells, seeds pooled
    parts: list[Part]  # groups of comparable cells, with recommendations
    figures: list[dict[str, Figure]]  # of each part, by key of `FIGURES`
    missing: list[dict[str, str]]  # of each part, why the others are not drawn


def read_sweep(table: Path) -> Sweep:
    """Reads one results file and its records.

    Raises:
        ValueError: there is no such file, or it has no rows.
    """
    if not table.is_file():
        raise ValueError(f"no results file {str(table)!r}")
    rows = read_rows([table])
    if rows.empty:
        raise ValueError(f"{str(table)!r} has no rows")
    records = Records(table)
    rows = pooled(rows, records)
    parts = parts_of(rows, records)
    results = [drawn(part, records) for part in parts]
    return Sweep(rows, parts, [made for made, _ in results], [missing for _, missing in results])


def build_page(table: Path) -> str:
    """The whole page of one results file.

    Raises:
        ValueError: there is no such file, or it has no rows.
    """
    from plotly.offline import get_plotlyjs

    sweep = read_sweep(table)
    rows = sweep.rows
    both = zip(sweep.figures, sweep.missing, strict=True)
    drawn_first = next((place for place, made in enumerate(sweep.figures) if made), 0)
    return render(
        "sweep.html.j2",
        name=table.parent.name,
        file=table.name,
        parts=sweep.parts,
        first=drawn_first,
        cells=len(rows),
        failed=int((rows.status == "failed").sum()),
        prompts=prompts_of(rows),
        measured_on=measured_on(rows.target, paper=False) or read_from(rows),
        origins=origins_of(table, rows),
        figures={key: each.title for key, each in FIGURES.items()},
        shown=SHOWN,
        detailed=DETAILED,
        data=_embedded([{"figures": made, "missing": missing} for made, missing in both]),
        plotly=packed(get_plotlyjs()),  # MIT, whole: it names its licence itself
    )


def packed(script: str) -> str:
    """A script as the page unpacks it, a third of its size; the same bytes every time."""
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def _embedded(value: Any) -> Markup:
    """JSON that may stand in a script."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
