"""DSBD's figures (arXiv:2409.16560): fronts against speed and energy, and what t and W_S do."""

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
}
_SETTINGS = {"keep": {"decoder": ["dsbd"]}, "markersize": 3, "faint": 0.18}
_BEAMS = {
    "keep": {"decoder": ["beam_sampling"]}, "mark": "line", "order": "tree.width",
    "markersize": 6.5, "faint": 0.6, "write": "{spec}", "at": "inside",
}  # fmt: skip


def fronts(cells, y="cell.score"):
    """Figures 4 to 6: a score against tokens/s and J/token, beam sampling and DSBD."""
    return panels(
        cells, COSTS, y, **_SHARED,
        label="{decoder} {spec}{marks}",
        layers=[
            _SETTINGS,
            {"keep": {"decoder": ["dsbd"]}, "mark": "front", "write": "{spec}", "at": "above"},
            _BEAMS,
            {"keep": {"decoder": ["sd"]}, "markers": "D", "markersize": 5, "faint": 0.6},
            {"keep": {"decoder": ["specinfer"]}, "markers": "^", "markersize": 5, "faint": 0.6},
        ],
        note="Steps: Pareto front of DSBD's settings (W_S x γ @ t), picked on these numbers. In "
        "the squares: width of beam sampling.\nBars: 95% intervals over prompts. SD: ours draws "
        f"its draft tokens, the paper's drafts greedily.\n{MEANING[0].upper()}{MEANING[1:]}",
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
        layers=[_SETTINGS, _BEAMS],
        note="A circle is a setting of DSBD (W_S, γ, t). Squares: beam sampling with its width, "
        "which the paper's figure may not have. Bars: 95% intervals over prompts.\n"
        f"{MEANING[0].upper()}{MEANING[1:]}",
    )  # fmt: skip


def figure_8(cells):
    """Effect of the width threshold t."""
    return _effect(cells, "tree.threshold", "t")


def figure_9(cells):
    """Effect of the draft width."""
    return _effect(cells, "tree.width", "W_S")


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
        note=f"DSBD's settings by {name}; steps: the Pareto front of each {name}, picked on these "
        "numbers. Bars: 95% intervals over prompts.\nThe copy of the paper that was read does not "
        "name the axes of this figure: they are those of Figures 4 to 6.",
    )  # fmt: skip
