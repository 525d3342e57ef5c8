"""Checks on the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from spec_bench.report.claims import Check

_STYLES = {"holds": "green", "within noise": "yellow", "does not hold": "red"}  # others: plain


def print_checks(checks: Sequence[Check]) -> None:
    """The checks on the console."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("claim", "on", "evidence", "verdict"):
        table.add_column(title)
    for check in checks:
        style = _STYLES.get(check.verdict, "none")
        verdict = f"[{style}]{check.verdict}[/{style}]"
        table.add_row(check.claim, check.where, check.evidence.replace("[", r"\["), verdict)
    console = Console()
    console.width = max(console.width, 130)
    console.print(table)
