"""RSD's Figure 1: acceptance of two Bernoulli candidates by four rules, as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spec_bench.report.figures.choose import nothing_measured
from spec_bench.report.figures.style import TWO_COLUMNS_INCHES, pyplot, save, settings
from spec_bench.report.papers.paper import Figure

RULES = {
    "multi_round": "multi-round",
    "k_seq": "K-SEQ",
    "otm": "OTM",
    "recursive_rejection": "recursive rejection",
}
_LEVELS = (0.5, 0.7, 0.9)


def heat_maps(item: Figure, rows: pd.DataFrame, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws four maps with one colour scale.

    Args:
        item: the figure.
        rows: columns p, q and one per rule, as ``spec_bench.audit.bernoulli`` writes them.
        folder: where to write to.
        formats: endings of the files to write.

    Raises:
        ValueError: the columns are not there.
    """
    if rows.empty or not {"p", "q", *RULES} <= set(rows):
        raise nothing_measured(item)
    with settings():
        figure, axes = pyplot.subplots(
            1, 4, figsize=(TWO_COLUMNS_INCHES, 2.25), sharey=True, layout="constrained"
        )
        for axis, (rule, title) in zip(axes, RULES.items(), strict=True):
            image = _draw_map(axis, square(rows, rule))
            axis.set_title(title)
        axes[0].set_ylabel("target's probability p")
        figure.colorbar(image, ax=axes, label="P(a candidate is accepted)", pad=0.01)
        figure.suptitle(
            "Acceptance of K = 2 candidates, target Ber(p), draft Ber(q): exact", fontsize=9
        )
        return save(figure, folder, "rsd-fig1", formats)


def _draw_map(axis: Any, table: pd.DataFrame) -> Any:
    """One rule's map with lines of equal acceptance; returns what the colour bar shows."""
    cells = (table.columns, table.index, table.to_numpy())
    scale = {"vmin": 0.0, "vmax": 1.0, "cmap": "viridis"}
    image = axis.pcolormesh(*cells, **scale, shading="nearest", rasterized=True)
    if np.ptp(table.to_numpy()) > 1e-6:
        lines = axis.contour(*cells, levels=_LEVELS, colors="white", linewidths=0.6)
        axis.clabel(lines, fontsize=6, fmt="%.1f")
    else:
        axis.text(0.5, 0.5, f"{table.iloc[0, 0]:.0f} everywhere", ha="center")
    axis.set(xlabel="draft's probability q", aspect="equal")
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axis.grid(False)
    return image


def square(rows: pd.DataFrame, rule: str) -> pd.DataFrame:
    """A rule's values with p down and q across, both ascending."""
    return rows.pivot(index="p", columns="q", values=rule).sort_index().sort_index(axis=1)
