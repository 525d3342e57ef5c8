"""ReDrafter's Figure 6: speed of a request and throughput against the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.beams import REDRAFTER
from spec_bench.report.figures import published
from spec_bench.report.figures.choose import (
    nothing_measured,
    own_pairs_first,
    sampled_as,
    usable,
    with_tree_attention,
)
from spec_bench.report.figures.style import (
    COLOURS,
    MARKERS,
    TWO_COLUMNS_INCHES,
    error_bars,
    marks,
    name_of,
    pyplot,
    save,
    settings,
)
from spec_bench.report.papers.index import Item

_COLUMNS = {
    "token_rate_per_request": "speed: tokens/s of a request",
    "token_rate": "throughput: tokens/s of all",
}
_NOTE = (
    "Speed: delivered tokens over a request's latency, prefill included. Throughput: over the "
    "seconds of decoding. Bars: 95% intervals over prompts.\nAbove: all decoders, with tree "
    "attention; below: ReDrafter with merged beams in one row, and with every beam as a row."
)


def draw(item: Item, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws four panels per pair: speed and throughput, of all decoders and of tree attention.

    Raises:
        ValueError: no two batch sizes are measured.
    """
    own = own_pairs_first(
        sampled_as(item, usable(rows, item, paths_as_rows=True)), published.pairs_of(item)
    )
    found = {pair: part for pair, part in own.groupby("pair", sort=False) if _several(part)}
    if not found or "token_rate_per_request" not in own:
        raise nothing_measured(item)
    paths = []
    for pair, part in found.items():
        with settings():
            figure, grid = pyplot.subplots(
                2, 2, figsize=(TWO_COLUMNS_INCHES, 5.2), sharex=True, layout="constrained"
            )
            curves = (decoder_curves(part), attention_curves(part))
            for axes, named in zip(grid, curves, strict=True):
                for plot, (column, title) in zip(axes, _COLUMNS.items(), strict=True):
                    _draw_panel(plot, named, column)
                    plot.set_ylabel(title)
                axes[0].legend(frameon=False, fontsize=6.5)
            for plot in grid[-1]:
                plot.set_xlabel("batch size")
            tasks = ", ".join(name_of(task) for task in dict.fromkeys(part.task))
            figure.suptitle(f"{pair}, {tasks}", fontsize=8)
            figure.supxlabel(_NOTE, fontsize=6.5, x=0.01, ha="left")
            paths += save(figure, folder, f"redrafter-fig{item.number}-{pair}", formats)
    return paths


def decoder_curves(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Every decoder and tree with tree attention, batch sizes ascending."""
    own = rows[with_tree_attention(rows)]
    return {
        f"{name_of(decoder)} {spec}".removesuffix(" -") + marks(part): part.sort_values(
            "batch_size"
        )
        for (decoder, spec), part in own.groupby(["decoder", "spec"], sort=False)
    }


def attention_curves(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """ReDrafter's beams that were measured both ways."""
    own = rows[rows.decoder == REDRAFTER]
    has = with_tree_attention(own)
    curves: dict[str, pd.DataFrame] = {}
    for spec in dict.fromkeys(own.spec[~has]):
        same = own.spec == spec
        for keep, how in ((has, "tree attention"), (~has, "beams as rows")):
            part = own[same & keep]
            if not part.empty:
                name = f"{name_of(REDRAFTER)} {spec}, {how}{marks(part)}"
                curves[name] = part.sort_values("batch_size")
    return curves


def _draw_panel(plot: Any, curves: dict[str, pd.DataFrame], column: str) -> None:
    """A curve a name."""
    for index, (name, part) in enumerate(curves.items()):
        columns = [f"{column}{end}" for end in ("", "_low", "_high")]
        plot.errorbar(
            part.batch_size,
            part[column],
            yerr=error_bars(part[columns].itertuples(index=False, name=None)),
            fmt=f"{MARKERS[index % len(MARKERS)]}-",
            color=COLOURS[index % len(COLOURS)],
            markersize=3.5,
            elinewidth=0.6,
            label=name,
        )
    sizes = sorted({int(size) for part in curves.values() for size in part.batch_size})
    plot.set_xscale("log", base=2)
    plot.set_xticks(sizes, [str(size) for size in sizes])
    plot.minorticks_off()
    plot.set_ylim(bottom=0)


def _several(rows: pd.DataFrame) -> bool:
    return bool(rows.batch_size.nunique() > 1)
