"""Checks on the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from spec_bench.report.claims.verdict import Check, Summary

_STYLES = {"holds": "green", "does not hold": "red"}
_STYLES |= dict.fromkeys(("shown alone", "within noise", "contradicted alone"), "yellow")
OURS = "not said by the paper, checked beside it"


def print_checks(checks: Sequence[Check], summary: Summary) -> None:
    """Prints the summary, then the checks under the paper's statements and their sections."""
    console = Console(highlight=False)
    console.width = max(console.width, 0 if console.is_terminal else 130)
    console.print(_escaped(summary.sentence))
    if summary.lines:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("what the paper says")
        for verdict in summary.verdicts:
            table.add_column(verdict.replace(" ", "\n", 1), justify="right")
        above = ""
        for (text, section, pair), counts in summary.lines.items():
            said = label(text, section)
            named = f"    {pair}" if said == above else f"{said}: {pair}" if pair else said
            table.add_row(_escaped(named), *counts)
            above = said
        console.print(table)
    for (text, section), group in by_statement(checks).items():
        if summary.lines:
            console.print(f"\n[bold]{_escaped(label(text, section))}[/bold]")
        console.print(table_of(group))


def by_statement(checks: Sequence[Check]) -> dict[tuple[str, str], list[Check]]:
    """Groups checks by the paper's statement and its section."""
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        groups.setdefault((check.statement, check.section), []).append(check)
    return groups


def label(text: str, section: str) -> str:
    """Returns the paper's statement, with its section."""
    return f"{text} ({section})" if text else OURS


def table_of(checks: Sequence[Check]) -> Table:
    """Returns checks alone."""
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
