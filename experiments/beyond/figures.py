"""Figures of what was found since the four papers."""

import numpy as np

from spec_bench.report.figures.grid import Axis, draw_panels

# A colour a tree, each rule a marker.
_RULES = {
    "mark": "line",
    "label": "{decoder}",
    "down": "task",
    "across": "temperature",
    "title": "{task}, temperature {temperature:g}",
    "dashed": ["spectr_traversal", "specinfer_traversal", "traversal", "rsd_s_traversal", "block"],
    "markersize": 3.5,
    "capsize": 1.5,
    "faint": 0.4,
    "share": "x",
    "width": [0.65, 0.95, 1.0],
    "height": 2.3,
    "note": "Marks of one place stand side by side.",
}


def figure_1(cells):
    """Rules on equal trees: block efficiency by nodes, task and temperature."""
    rules = ["spectr", "optimal", "spectr_traversal", "specinfer", "specinfer_traversal", "rsd_c"]
    rules += ["traversal", "top_and_sample", "rsd_s", "rsd_s_traversal"]
    return draw_panels(
        cells, "nodes_per_call", "block_efficiency", **_RULES,
        keep={"decoder": rules},
        dodge=0.35,
        axes={"nodes_per_call": Axis("nodes to verify", ticks=(6, 14, 30))},
        rest=1.5,
        legend_columns=[2, 4, 4],
        caption="A colour is a tree; dashed: traversal verification of it.",
    )  # fmt: skip


def figure_2(cells):
    """Block verification beside token-level verification, by draft length."""
    return draw_panels(
        cells, "draft_calls", "block_efficiency", **_RULES,
        keep={"decoder": ["sd", "block"]},
        axes={"draft_calls": Axis("draft length L", ticks=(3, 8))},
        dodge=0.1,
        legend_columns=2,
        rest=1.0,
    )  # fmt: skip


def figure_3(cells):
    """Trees of equal budgets, of 14 or 15 and of 30 nodes: block efficiency by budget."""
    rows = cells.rows()
    return draw_panels(
        cells, "budget", "block_efficiency", **{**_RULES, "mark": "point"},
        of=rows.assign(budget=np.where(rows.nodes_per_call < 20, "14 or 15", "30")),
        keep={"decoder": ["spectr", "rsd_c", "rsd_s", "sequoia", "opt_tree", "dyspec"]},
        best="y",
        axes={"budget": Axis("nodes to verify")},
        dodge=0.1,
        rest=1.5,
        legend_columns=[2, 4, 4],
        caption="Each is its decoder's best tree of so many nodes, picked on these numbers.",
    )  # fmt: skip


def figure_4(cells):
    """No draft model: speed-up against block efficiency, transformers' own beside."""
    return draw_panels(
        cells, "block_efficiency", "speedup",
        label="{decoder}",
        down="task",
        across="temperature",
        title="{task}, temperature {temperature:g}",
        guide=1.0,
        markersize=5,
        axes={"speedup": Axis("speedup over AR")},
        width=[0.65, 0.9],
        rest=1.2,
        legend_columns=3,
        note="Red: another engine, transformers' own generate.",
    )  # fmt: skip
