"""DSBD's figures (arXiv:2409.16560): fronts against speed and energy, and what t and W_S do."""

from itertools import pairwise
from math import inf

from spec_bench.report.figures.panels import Axis, panels
from spec_bench.vocabulary.names import MEANINGS

COSTS = ("token_rate", "energy_j_per_token")
MEANING = MEANINGS["exact_beam"]
_SHARED = {
    "down": "cell.group",
    "title": "{cell.group}",
    "axes": {
        "token_rate": Axis("tokens/s"),
        "energy_j_per_token": Axis(hint="; add energy=nvml, nvidia_smi or rapl"),
        "perplexity": Axis("perplexity (lower: better)"),
        "beam_width": Axis("average accepted width"),
    },
    "note": f"{MEANING[0].upper()}{MEANING[1:]}",
}
_SETTINGS = {
    "keep": {"decoder": ["dsbd"]}, "markersize": 3, "faint": 0.18,
    "caption": "A circle is a setting of DSBD (W_S x γ @ t).",
}  # fmt: skip
_BEAMS = {
    "keep": {"decoder": ["beam_sampling"]}, "mark": "line", "order": "tree.width",
    "markersize": 2.8, "faint": 0.6,
    "caption": "At the squares: width of beam sampling.",
}  # fmt: skip


def fronts(cells, y="cell.score"):
    """Figures 4 to 6: a score against tokens/s and J/token, beam sampling and DSBD."""
    return panels(
        cells, COSTS, y, **_SHARED,
        label="{decoder} {spec}{marks}",
        finish=_write_widths,
        layers=[
            _SETTINGS,
            {"keep": {"decoder": ["dsbd"]}, "mark": "front", "write": "{spec}", "at": "above",
             "caption": "Steps: their Pareto front, picked on these numbers, above by name."},
            _BEAMS,
            {"keep": {"decoder": ["sd"]}, "markers": "D", "markersize": 5, "faint": 0.6,
             "caption": "SD: ours draws its draft tokens, as the authors' code; the paper's text "
             "drafts greedily."},
            {"keep": {"decoder": ["specinfer"]}, "markers": "^", "markersize": 5, "faint": 0.6},
        ],
    )  # fmt: skip


figure_4 = figure_5 = fronts


def figure_6(cells):
    """Perplexity against tokens/s and J/token."""
    return fronts(cells, "perplexity")


def figure_7(cells):
    """Average accepted width against score, speed and energy."""
    return panels(
        cells, "beam_width", ("cell.score", *COSTS), **_SHARED,
        label="{decoder} {spec}{marks}",
        finish=_write_widths,
        layers=[_SETTINGS, {**_BEAMS, "caption": "At the squares: width of beam sampling, "
                            "which the paper's figure may not have."}],
    )  # fmt: skip


def figure_8(cells):
    """Effect of the width threshold t."""
    return _effect(cells, "tree.threshold", "t")


def figure_9(cells):
    """Effect of the draft width."""
    return _effect(cells, "tree.width", "W_S")


def _write_widths(plot, sheet, panel):
    """Each width beside its square, on the side of the farther neighbour."""
    squares = [series.rows for series in panel.series if series.layer.order == "tree.width"]
    for rows in squares:
        rows = rows.sort_values(panel.said.x)
        at = rows[panel.said.x]
        gaps = [inf, *(right - left for left, right in pairwise(at)), inf]
        for place, gap in zip(
            zip(at, rows[panel.said.y], rows.spec, strict=True), pairwise(gaps), strict=True
        ):
            x, y, width = place
            side = -1 if gap[1] < gap[0] else 1
            plot.annotate(
                width, (x, y), xytext=(4 * side, 4), textcoords="offset points", fontsize=6.5,
                ha="left" if side > 0 else "right", va="center",
            )  # fmt: skip


def _effect(cells, hue, name):
    return panels(
        cells, COSTS, "cell.score", **_SHARED,
        keep={"decoder": ["dsbd"]},
        hue=hue,
        label=f"{name} = {{{hue}:g}}",
        colours=0.9,
        layers=[{"faint": 0.18}, {"mark": "front", "linewidth": 0.9}],
        heading=f"{{pair}}: {name}, DSBD{{marks}}",
        legend_columns=5,
        caption=f"DSBD's settings by {name}; steps: the Pareto front of each {name}, picked on "
        "these numbers, where it has several. The copy of the paper that was read does not name "
        "the axes of this figure: they are those of Figures 4 to 6.",
    )  # fmt: skip
