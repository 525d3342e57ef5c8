"""Figures of what was found since the four papers."""

import numpy as np

from spec_bench.report.figures.grid import Axis, draw_panels

# A colour a tree, each rule a marker.
_LOOK = {
    "mark": "line",
    "label": "{decoder}",
    "dashed": ["spectr_traversal", "specinfer_traversal", "traversal", "rsd_s_traversal", "block"],
    "markersize": 3.5,
    "capsize": 1.5,
    "faint": 0.4,
}
_RULES = {
    "down": "task",
    "across": "temperature",
    "title": "{task}, temperature {temperature:g}",
    "share": "x",
    "width": [0.65, 0.95, 1.0],
    "height": 2.3,
    "note": "Marks of one place stand side by side.",
}


def figure_1(cells):
    """Rules on equal trees: block efficiency by nodes, task and temperature."""
    rules = ["spectr", "optimal", "spectr_traversal", "specinfer", "specinfer_traversal", "rsd_c"]
    rules += ["traversal", "top_and_sample", "rsd_s", "rsd_s_traversal"]
    said = "A colour is a tree; dashed: traversal verification of it."
    return draw_panels(
        cells,
        lambda panel: panel.series(**_LOOK, dodge=0.35, caption=said),
        "nodes_per_call",
        "block_efficiency",
        **_RULES,
        keep={"decoder": rules},
        axes={"nodes_per_call": Axis("nodes to verify", ticks=(6, 14, 30))},
        rest=1.5,
        legend_columns=[2, 4, 4],
    )


def figure_2(cells):
    """Block verification beside token-level verification, by draft length."""
    return draw_panels(
        cells,
        lambda panel: panel.series(**_LOOK, dodge=0.1),
        "draft_calls",
        "block_efficiency",
        **_RULES,
        keep={"decoder": ["sd", "block"]},
        axes={"draft_calls": Axis("draft length L", ticks=(3, 8))},
        legend_columns=2,
        rest=1.0,
    )


def figure_3(cells):
    """Trees of equal budgets, of 14 or 15 and of 30 nodes: block efficiency by budget."""
    rows = cells.rows()
    said = "Each is its decoder's best tree of so many nodes, picked on these numbers."
    look = {**_LOOK, "mark": "point", "best": "y", "dodge": 0.1, "caption": said}
    return draw_panels(
        cells,
        lambda panel: panel.series(**look),
        "budget",
        "block_efficiency",
        **_RULES,
        of=rows.assign(budget=np.where(rows.nodes_per_call < 20, "14 or 15", "30")),
        keep={"decoder": ["spectr", "rsd_c", "rsd_s", "sequoia", "opt_tree", "dyspec"]},
        axes={"budget": Axis("nodes to verify")},
        rest=1.5,
        legend_columns=[2, 4, 4],
    )


def figure_4(cells):
    """No draft model: speed-up against block efficiency, transformers' own beside."""
    return draw_panels(
        cells, lambda panel: panel.series(label="{decoder}", markersize=5),
        "block_efficiency", "speedup",
        guide=1.0,
        down="task",
        across="temperature",
        title="{task}, temperature {temperature:g}",
        axes={"speedup": Axis("speedup over AR")},
        width=[0.65, 0.9],
        rest=1.2,
        legend_columns=3,
        note="Red: another engine, transformers' own generate.",
    )  # fmt: skip
