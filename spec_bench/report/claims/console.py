"""Prints the checks of claims on the console."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from spec_bench.report.claims.verdict import Check, ClaimsSummary, format_statement, group_by_claim

_STYLES = {"holds": "green", "does not hold": "red"}
_STYLES |= dict.fromkeys(("shown alone", "within noise", "contradicted alone"), "yellow")


def print_checks(checks: Sequence[Check], summary: ClaimsSummary) -> None:
    """Prints the summary, then the checks under the paper's statements and their sections."""
    console = Console(highlight=False)
    console.width = max(console.width, 0 if console.is_terminal else 130)
    console.print(_escape_markup(summary.sentence))
    if summary.counts_by_claim:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("what the paper says")
        for verdict in summary.verdicts:
            table.add_column(verdict.replace(" ", "\n", 1), justify="right")
        label_before = ""
        for (text, section, pair), counts in summary.counts_by_claim.items():
            claim_label = format_statement(text, section)
            line_label = (
                f"    {pair}"
                if claim_label == label_before
                else f"{claim_label}: {pair}"
                if pair
                else claim_label
            )
            table.add_row(_escape_markup(line_label), *counts)
            label_before = claim_label
        console.print(table)
    for (text, section), group in group_by_claim(checks).items():
        if summary.counts_by_claim:
            console.print(f"\n[bold]{_escape_markup(format_statement(text, section))}[/bold]")
        console.print(build_checks_table(group))


def build_checks_table(checks: Sequence[Check]) -> Table:
    """Builds a console table of checks: claim, place, evidence and verdict."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("claim", "on", "evidence", "verdict"):
        table.add_column(title)
    for check in checks:
        style = _STYLES.get(check.verdict, "none")
        verdict = f"[{style}]{check.verdict}[/{style}]"
        texts = (_escape_markup(text) for text in (check.claim, check.where, check.evidence))
        table.add_row(*texts, verdict)
    return table


def _escape_markup(text: str) -> str:
    return text.replace("[", r"\[")
