"""A results file as Markdown: one table per task, values with their 95% intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.metrics import quality_names
from spec_bench.report.load import Group, provenance_of
from spec_bench.report.papers.titles import MARKS, MEANINGS

# (header, column, digits, factor)
_COLUMNS: tuple[tuple[str, str, int, float], ...] = (
    ("block efficiency", "block_efficiency", 2, 1.0),
    ("MBSU", "mbsu", 2, 1.0),
    ("acceptance rate", "acceptance_rate", 2, 1.0),
    ("token rate (1/s)", "token_rate", 0, 1.0),
    ("end to end (1/s)", "token_rate_end_to_end", 0, 1.0),
    ("speedup", "speedup", 2, 1.0),
    ("host overhead", "host_overhead", 2, 1.0),
    ("J/token", "energy_j_per_token", 3, 1.0),
    ("beam width", "beam_width", 2, 1.0),
    ("perplexity", "perplexity", 2, 1.0),
)
_COUNTS = ("execution_errors", "execution_timeouts")  # shown where there are any


def markdown(groups: Sequence[Group], results: Path) -> str:
    """All groups' tables and where they were measured."""
    parts = [_group_table(group) for group in groups]
    return "\n\n".join([*parts, _footer(groups, results)]) + "\n"


def formatted(row: pd.Series, column: str, digits: int, factor: float = 1.0) -> str:
    """``value [low, high]``; empty where there is no value."""
    value = row.get(column)
    if value is None or pd.isna(value):
        return ""
    text = f"{value * factor:.{digits}f}"
    low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
    if low is None or pd.isna(low) or pd.isna(high) or low == high:
        return text
    return f"{text} [{low * factor:.{digits}f}, {high * factor:.{digits}f}]"


def _group_table(group: Group) -> str:
    """One task's table with the columns that have a value in it."""
    columns = [c for c in _columns(group) if c[1] in group.rows and group.rows[c[1]].notna().any()]
    lines = [
        f"### {group.title}",
        "",
        "| " + " | ".join(["decoder", "spec", *(header for header, *_ in columns)]) + " |",
        "| " + " | ".join(["---", "---", *("---:" for _ in columns)]) + " |",
    ]
    for _, row in group.rows.iterrows():
        mark = MARKS.get(str(row.lossless))
        name = f"{row.decoder} ({mark})" if mark else str(row.decoder)
        cells = [formatted(row, name, digits, factor) for _, name, digits, factor in columns]
        if row.status == "failed":
            cells = [f"failed: {str(row.reason).split(' (trace')[0]}", *[""] * (len(columns) - 1)]
        lines.append("| " + " | ".join([name, str(row.spec), *cells]) + " |")
    return "\n".join(lines)


def _columns(group: Group) -> list[tuple[str, str, int, float]]:
    """Efficiency, then whatever scores the rows have, then what counts against a score."""
    scores = [(name.replace("_", " "), name, 3, 1.0) for name in quality_names(group.rows.columns)]
    counts = [
        (name.replace("_", " "), name, 0, 1.0)
        for name in _COUNTS
        if name in group.rows and group.rows[name].any()
    ]
    return [*_COLUMNS, *scores, *counts]


def _footer(groups: Sequence[Group], results: Path) -> str:
    """Pair, sample size, machine and versions, as the records have them."""
    first = groups[0].rows.iloc[0]
    facts = [f"pair {first.pair}", f"batch size {first.batch_size}"]
    facts += [f"{group.title}: {_settings(group)}" for group in groups]
    origin: dict[str, Any] = provenance_of(results, first.run_id) or {}
    if origin:
        devices = ", ".join(origin["torch"]["devices"]) or origin["cpu"]
        versions = origin["versions"]
        facts += [
            f"measured on {devices}, {origin['torch']['threads']} threads",
            f"torch {versions.get('torch')}, transformers {versions.get('transformers')}",
        ]
    intervals = "In brackets: 95% intervals, bootstrap over prompts, paired by prompt for speedup."
    found = {str(mark) for group in groups for mark in group.rows.lossless}
    facts += [text for mark, text in MEANINGS.items() if mark in found]
    return "\n".join([intervals, "", *(f"- {fact}" for fact in facts)])


def _settings(group: Group) -> str:
    """Prompts and sampling of one group."""
    row = group.rows.iloc[0]
    prompts = group.rows.prompts.max() if "prompts" in group.rows else float("nan")
    count = "no" if pd.isna(prompts) else f"{int(prompts)}"
    truncation = "" if row.top_p == 1 else f", top-p {row.top_p:g}"
    return f"{count} prompts, temperature {row.temperature:g}{truncation}, seed {row.seed}"
