"""Checks on the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from spec_bench.report.claims import Check
    from spec_bench.report.claims.summary import Summary

_STYLES = {"holds": "green", "within noise": "yellow", "does not hold": "red"}  # others: plain
OURS = "not said by the paper, checked beside it"


def print_checks(checks: Sequence[Check], summary: Summary) -> None:
    """What the checks come to, then each under what the paper says and its section."""
    console = Console(highlight=False, soft_wrap=False)
    console.width = max(console.width, 130)
    console.print(_escaped(summary.sentence))
    if summary.lines:
        console.print(_counts(summary))
    found: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        found.setdefault((check.said, check.section), []).append(check)
    for (text, section), own in found.items():
        if summary.lines:
            console.print(f"\n[bold]{_escaped(said(text, section))}[/bold]")
        console.print(_table(own))


def said(text: str, section: str) -> str:
    """What the paper says, with its place."""
    return f"{text} ({section})" if text else OURS


def _counts(summary: Summary) -> Table:
    """How many checks of each thing said came out how."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("what the paper says")
    for verdict in summary.verdicts:
        table.add_column(verdict, justify="right")
    for line in summary.lines:
        table.add_row(_escaped(said(line.said, line.section)), *line.cells(summary.verdicts))
    return table


def _table(checks: Sequence[Check]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("claim", "on", "evidence", "verdict"):
        table.add_column(title)
    for check in checks:
        style = _STYLES.get(check.verdict, "none")
        verdict = f"[{style}]{check.verdict}[/{style}]"
        texts = (_escaped(text) for text in (check.claim, check.where, check.evidence))
        table.add_row(*texts, verdict)
    return table


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
