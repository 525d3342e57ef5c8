"""ReDrafter's Figure 5: what wider beams bring, and how far merged prefixes shrink them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.beams import REDRAFTER, head_beams
from spec_bench.report.figures import published
from spec_bench.report.figures.choose import (
    nothing_measured,
    own_pairs_first,
    sampled_as,
    usable,
)
from spec_bench.report.figures.style import (
    MARKERS,
    TWO_COLUMNS_INCHES,
    VERMILLION,
    error_bars,
    marks,
    name_of,
    pyplot,
    save,
    settings,
)
from spec_bench.report.papers.index import Item

_NODES = ("nodes_per_call_p01", "nodes_per_call_p50", "nodes_per_call_p99")
_NOTE = (
    "Left: bars are 95% intervals over prompts; marks moved aside. An answer that ends before its "
    "limit is as long as it is.\nRight: median over target calls, bars from the 1st to the 99th "
    "percentile; dashed: nothing merged. The root is not counted."
)


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws two panels per pair and task.

    Raises:
        ValueError: no beams are measured.
    """
    found = with_width(
        own_pairs_first(sampled_as(item, usable(rows, item)), published.pairs_of(item))
    )
    if found.empty or "nodes_per_call_p50" not in found:
        raise nothing_measured(item)
    paths = []
    for (pair, task), own in found.groupby(["pair", "task"], sort=False):
        named = "" if found[found.pair == pair].task.nunique() == 1 else f"-{task}"
        with settings():
            figure, (left, right) = pyplot.subplots(
                1, 2, figsize=(TWO_COLUMNS_INCHES, 3.1), layout="constrained"
            )
            _widths(left, own)
            _merging(right, own)
            figure.suptitle(f"{pair}, {name_of(task)}{marks(own)}", fontsize=8)
            figure.supxlabel(_NOTE, fontsize=6.5, x=0.01, ha="left")
            paths += save(figure, folder, f"redrafter-fig{item.number}-{pair}{named}", formats)
    return paths


def with_width(rows: pd.DataFrame) -> pd.DataFrame:
    """ReDrafter's exact cells with columns ``width`` and ``tokens`` (width x length), ascending."""
    found = rows[(rows.decoder == REDRAFTER)]
    beams = [head_beams(str(spec)) for spec in found.spec]
    found = found.assign(
        width=[width for width, _ in beams], tokens=[width * length for width, length in beams]
    )
    return found.sort_values("width", kind="stable")


def _widths(plot: Any, rows: pd.DataFrame) -> None:
    """Tokens per target call against beam width, a curve a limit of the answer's length."""
    limits = sorted(rows.max_new_tokens.unique()) if "max_new_tokens" in rows else [None]
    for index, limit in enumerate(limits):
        own = rows if limit is None else rows[rows.max_new_tokens == limit]
        columns = [f"block_efficiency{end}" for end in ("", "_low", "_high")]
        plot.errorbar(
            own.width * 1.04 ** (index - (len(limits) - 1) / 2),
            own.block_efficiency,
            yerr=error_bars(own[columns].itertuples(index=False, name=None)),
            fmt=f"{MARKERS[index % len(MARKERS)]}-",
            color=pyplot.cm.viridis(0.85 * index / max(1, len(limits) - 1)),
            markersize=4,
            elinewidth=0.6,
            label=None if limit is None else f"up to {limit:g} tokens",
        )
    widths = sorted(rows.width.unique())
    plot.set_xscale("log", base=2)
    plot.set_xticks(widths, [f"{width:g}" for width in widths])
    plot.minorticks_off()
    plot.set(xlabel="beam width", ylabel="tokens per target call")
    plot.set_ylim(bottom=1)
    if limits != [None]:
        plot.legend(frameon=False)


def _merging(plot: Any, rows: pd.DataFrame) -> None:
    """Nodes verified against tokens before merging, of the longest answers."""
    longest = rows.max_new_tokens.max() if "max_new_tokens" in rows else None
    own = rows if longest is None else rows[rows.max_new_tokens == longest]
    low, median, high = (own[name] for name in _NODES)
    points = zip(median, low, high, strict=True)
    plot.errorbar(
        own.tokens,
        median,
        yerr=error_bars(points),
        fmt="o-",
        color=VERMILLION,
        markersize=4,
        elinewidth=0.8,
        capsize=2,
    )
    ends = [own.tokens.min(), own.tokens.max()]
    plot.plot(ends, ends, "--", color="grey", linewidth=0.8)
    for x, y in zip(own.tokens, median, strict=True):
        if y < x:
            place = {"xytext": (3, -9), "textcoords": "offset points", "fontsize": 6}
            plot.annotate(f"{x / y:.2f}×", (x, y), **place)
    plot.set_xscale("log", base=2)
    plot.set_yscale("log", base=2)
    ticks = sorted(own.tokens.unique())
    plot.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    plot.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    plot.minorticks_off()
    plot.set(xlabel="tokens of all beams (width × length)", ylabel="nodes after merging")
