"""The sweep's page: one HTML file that works offline, plotly.js inside it.

The same results give the same bytes: no time, no random names, and what is embedded is sorted as
the results are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from spec_bench.report.counts import Records
from spec_bench.report.page.build import measured_on
from spec_bench.report.page.gather import origins_of
from spec_bench.report.page.templating import render
from spec_bench.report.rows import prompts_of, read_from, read_rows
from spec_bench.report.seeds import pooled
from spec_bench.report.sweep.choose import DETAILED, SHOWN, Part, parts_of
from spec_bench.report.sweep.traces import FIGURES


def build_page(table: Path) -> str:
    """The whole page of one results file.

    Raises:
        ValueError: there is no such file, or it has no rows.
    """
    from plotly.offline import get_plotlyjs

    if not table.is_file():
        raise ValueError(f"no results file {str(table)!r}")
    rows = read_rows([table])
    if rows.empty:
        raise ValueError(f"{str(table)!r} has no rows")
    records = Records(table)
    rows = pooled(rows, records)
    parts = parts_of(rows, records)
    return render(
        "sweep.html.j2",
        name=table.parent.name,
        file=table.name,
        parts=parts,
        cells=len(rows),
        failed=int((rows.status == "failed").sum()),
        prompts=prompts_of(rows),
        measured_on=measured_on(rows.target, paper=False) or read_from(rows),
        origins=origins_of(table, rows),
        figures={key: title for key, (title, _) in FIGURES.items()},
        shown=SHOWN,
        detailed=DETAILED,
        data=_embedded([_figures(part, records) for part in parts]),
        plotly=Markup(get_plotlyjs()),  # MIT, whole: it names its licence itself
    )


def _figures(part: Part, records: Records) -> dict[str, Any]:
    """What of a part can be drawn."""
    made = {key: draw(part, records) for key, (_, draw) in FIGURES.items()}
    return {key: figure for key, figure in made.items() if figure is not None}


def _embedded(value: Any) -> Markup:
    """JSON that may stand in a script."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
