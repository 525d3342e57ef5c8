"""The sweep's page: one HTML file that works offline, plotly.js compressed inside it.

The same results give the same bytes: no time, no random names, and the embedded data are sorted
as the results are.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from spec_bench.report.data.rows import prompts_of, read_from
from spec_bench.report.page.build import measured_on, render
from spec_bench.report.page.gather import read_cells
from spec_bench.report.sweep.figures import DETAILED, FIGURES, SHOWN, drawn, parts_of


def build_page(table: Path) -> str:
    """The whole page of one results file.

    Raises:
        ValueError: there is no such file, or it has no rows.
    """
    from plotly.offline import get_plotlyjs

    if not table.is_file():
        raise ValueError(f"no results file {str(table)!r}")
    cells = read_cells([table])
    rows, parts = cells.rows, parts_of(cells.rows, cells.records)
    figures = [drawn(part, cells.records) for part in parts]
    return render(
        "sweep.html.j2",
        name=table.parent.name,
        file=table.name,
        parts=parts,
        first=next((place for place, (made, _) in enumerate(figures) if made), 0),
        cells=len(rows),
        failed=int((rows.status == "failed").sum()),
        prompts=prompts_of(rows),
        measured_on=measured_on(rows.target, paper=False) or read_from(rows),
        origins=cells.origins,
        figures={key: each.title for key, each in FIGURES.items()},
        shown=SHOWN,
        detailed=DETAILED,
        data=_embedded([{"figures": made, "missing": missing} for made, missing in figures]),
        plotly=packed(get_plotlyjs()),  # MIT, whole: it names its licence itself
    )


def packed(script: str) -> str:
    """A script as the page unpacks it, a third of its size; the same bytes every time."""
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def _embedded(value: Any) -> Markup:
    """JSON that may stand in a script."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
