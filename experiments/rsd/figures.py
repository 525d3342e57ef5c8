"""RSD's figures (arXiv:2402.14160): the best trees, and acceptance by four rules."""

from functools import partial

import numpy as np

from spec_bench.report.figures.cells import make_nothing_measured_error
from spec_bench.report.figures.grid import Axis, draw_panels
from spec_bench.report.figures.style import GREY, TWO_COLUMNS_INCHES, ReportFigure

RULES = {
    "multi_round": "multi-round",
    "k_seq": "K-SEQ",
    "otm": "OTM",
    "recursive_rejection": "recursive rejection",
}
_LEVELS = (0.5, 0.7, 0.9)


def figure_1(cells):
    """Acceptance of two Bernoulli candidates: four maps with one colour scale.

    The rows have columns p, q and one for each rule, as ``bernoulli.py`` writes them.
    """
    rows = cells.given
    if cells.alone or rows.empty or not {"p", "q", *RULES} <= set(rows):
        raise make_nothing_measured_error(cells.item)
    figure = ReportFigure((TWO_COLUMNS_INCHES, 2.25), layout="constrained")
    axes = figure.subplots(1, 4, sharey=True)
    for axis, (rule, title) in zip(axes, RULES.items(), strict=True):
        image = _draw_map(axis, square(rows, rule))
        axis.set_title(title)
    axes[0].set_ylabel("draft's probability p")
    figure.colorbar(image, ax=axes, label="P(a candidate is accepted)", pad=0.01)
    figure.suptitle(
        "Acceptance of K = 2 candidates, draft Ber(p), target Ber(q): exact", fontsize=9
    )
    return [figure]


def best_trees(cells, x, axis, dodge):
    """Figures 4 to 9: the best of each decoder's trees at a place, relative to AR."""
    return draw_panels(
        cells, x, "block_efficiency", draw=_draw_best, dodge=dodge,
        down="cell.group",
        side="{cell.group}",
        by_column=[
            {"title": "block efficiency / AR's"},
            {"y": "mbsu", "title": "MBSU / AR's"},
            {"y": "speedup", "title": "token rate / AR's"},
            {"y": "cell.relative", "title": "accuracy / AR's", "empty": "no score"},
        ],
        share="x",
        guide=1.0,
        axes={x: axis},
        height=1.55,
        rest=1.15,
        heading="{pair}{marks}, relative to autoregressive decoding",
        heading_size=9,
        legend_columns=5,
    )  # fmt: skip


def _draw_best(panel, dodge):
    best = "y"
    said = "Each mark is the best of the decoder's trees at that place, picked on these numbers."
    if panel.y == "cell.relative":
        # All exact decoders draw from the same law: the highest score would be the luckiest.
        best = "block_efficiency"
        said = "Accuracy is that of the tree with the best block efficiency."
    shown = {"decoder": ["sd", "spectr", "rsd_c", "rsd_s"]}
    look = {"keep": shown, "mark": "line", "best": best}
    panel.series(
        label="{decoder}", dodge=dodge, markersize=3.2, elinewidth=0.7, capsize=1.5, caption=said,
        **look,
    )  # fmt: skip
    panel.series(
        printed=True, dashed=True, markersize=0, linewidth=1, alpha=0.4, label="the paper's",
        caption="Dashed: the paper's. {stand_in}", **look,
    )  # fmt: skip
    if panel.y != "cell.relative":
        return
    plain = panel.rows[panel.rows.decoder == "ar"]
    for band in plain[["cell.relative_low", "cell.relative_high"]].dropna().to_numpy():
        panel.plot.axhspan(*band, color=GREY, alpha=0.15, linewidth=0)
        panel.captions.append("Grey band: AR's own interval.")


figure_4 = figure_6 = figure_7 = partial(
    best_trees,
    x="paper.draft_length",
    axis=Axis("draft length L", ticks=(2, 3, 4, 5)),
    dodge=0.036,
)
figure_5 = figure_8 = figure_9 = partial(
    best_trees,
    x="paper.target_budget",
    axis=Axis("budget B (tree nodes)", ticks=(6, 10, 14, 21, 30)),
    dodge=0.288,
)


def _draw_map(axis, table):
    """One rule's map with lines of equal acceptance; returns what the colour bar shows."""
    cells = (table.columns, table.index, table.to_numpy())
    scale = {"vmin": 0.0, "vmax": 1.0, "cmap": "viridis"}
    image = axis.pcolormesh(*cells, **scale, shading="nearest", rasterized=True)
    if np.ptp(table.to_numpy()) > 1e-6:
        lines = axis.contour(*cells, levels=_LEVELS, colors="white", linewidths=0.6)
        axis.clabel(lines, fontsize=6, fmt="%.1f")
    else:
        axis.text(0.5, 0.5, f"{table.iloc[0, 0]:.0f} everywhere", ha="center")
    axis.set(xlabel="target's probability q", aspect="equal")
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axis.grid(False)
    return image


def square(rows, rule):
    """A rule's values with p down and q across, both ascending."""
    return rows.pivot(index="p", columns="q", values=rule).sort_index().sort_index(axis=1)
