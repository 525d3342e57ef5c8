"""``python -m spec_bench.report results/NAME/results.csv``: table, figure, checks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from spec_bench.report.figure import draw
from spec_bench.report.load import groups_of, read_results
from spec_bench.report.orderings import Check, check_all
from spec_bench.report.table import markdown

_STYLES = {"holds": "green", "within noise": "yellow", "does not hold": "red"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes ``table.md`` and ``figure.png`` beside the results file, prints the checks."""
    parser = argparse.ArgumentParser(prog="python -m spec_bench.report", description=__doc__)
    parser.add_argument("results", type=Path, help="a results.csv")
    parser.add_argument("--output", type=Path, help="folder to write to; default: beside it")
    options = parser.parse_args(arguments)
    folder = options.output or options.results.parent
    try:
        groups = groups_of(read_results(options.results))
    except ValueError as error:
        print(f"spec_bench.report: {error}", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    checks = check_all(groups, options.results)
    text = markdown(groups, options.results) + "\n" + _checks_markdown(checks)
    (folder / "table.md").write_text(text, encoding="utf-8")
    draw(groups, folder / "figure.png")
    _print_checks(checks)
    print(f"table:  {folder / 'table.md'}\nfigure: {folder / 'figure.png'}")
    return 0


def _checks_markdown(checks: Sequence[Check]) -> str:
    """The checks as a Markdown table."""
    lines = ["### Checks", "", "| claim | on | evidence | verdict |", "| --- | --- | --- | --- |"]
    lines += [f"| {c.claim} | {c.where} | {c.evidence} | {c.verdict} |" for c in checks]
    return "\n".join(lines) + "\n"


def _print_checks(checks: Sequence[Check]) -> None:
    """The checks on the console."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("claim", "on", "evidence", "verdict"):
        table.add_column(title)
    for check in checks:
        style = _STYLES[check.verdict]
        verdict = f"[{style}]{check.verdict}[/{style}]"
        table.add_row(check.claim, check.where, check.evidence.replace("[", r"\["), verdict)
    console = Console()
    console.width = max(console.width, 130)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
