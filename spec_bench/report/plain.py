"""The plain report on one results file: ``table.md`` and ``figure.png`` beside it, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spec_bench.report.figure import draw
from spec_bench.report.load import groups_of, read_results
from spec_bench.report.orderings import Check, check_all
from spec_bench.report.table import markdown
from spec_bench.report.verdicts import print_checks


def write_report(results: Path, folder: Path) -> None:
    """Writes the table with the checks, draws the figure, prints the checks.

    Args:
        results: a results file.
        folder: where to write.

    Raises:
        ValueError: there is no such file, or it has no rows.
    """
    groups = groups_of(read_results(results))
    folder.mkdir(parents=True, exist_ok=True)
    checks = check_all(groups, results)
    text = markdown(groups, results) + "\n" + _checks_markdown(checks)
    (folder / "table.md").write_text(text, encoding="utf-8")
    draw(groups, folder / "figure.png")
    print_checks(checks)
    print(f"table:  {folder / 'table.md'}\nfigure: {folder / 'figure.png'}")


def _checks_markdown(checks: Sequence[Check]) -> str:
    """The checks as a Markdown table."""
    lines = ["### Checks", "", "| claim | on | evidence | verdict |", "| --- | --- | --- | --- |"]
    lines += [f"| {c.claim} | {c.where} | {c.evidence} | {c.verdict} |" for c in checks]
    return "\n".join(lines) + "\n"
