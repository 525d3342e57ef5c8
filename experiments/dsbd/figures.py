"""DSBD's figures (arXiv:2409.16560): fronts against speed and energy, and what t and W_S do."""

from itertools import pairwise
from math import inf

from spec_bench.report.figures.grid import Axis, draw_panels
from spec_bench.vocabulary.names import MEANINGS

COSTS = ("token_rate", "energy_j_per_token")
MEANING = MEANINGS["exact_beam"]
_OWN = {"decoder": ["dsbd"]}
_LABEL = "{decoder} {spec}{marks}"
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


def fronts(cells, y="cell.score"):
    """Figures 4 to 6: a score against tokens/s and J/token, beam sampling and DSBD."""

    def draw(panel, **look):
        _draw_settings(panel, **look)
        for front in panel.series(
            **look, keep=_OWN, mark="front",
            caption="Steps: their Pareto front, picked on these numbers, above by name.",
        ):  # fmt: skip
            panel.plot.set_title(panel.title, pad=10)
            panel.plot.annotate(
                f"front: {', '.join(front.rows.spec)}", (0.01, 1.0), xycoords="axes fraction",
                fontsize=5.5, color=front.look.colour,
            )  # fmt: skip
        _draw_beams(panel, **look, caption="At the squares: width of beam sampling.")
        look |= {"markersize": 5, "faint": 0.6}
        panel.series(
            keep={"decoder": ["sd"]}, looks={"sd": " D"}, **look,
            caption="SD: ours draws its draft tokens, as the authors' code; the paper's text "
            "drafts greedily.",
        )  # fmt: skip
        panel.series(keep={"decoder": ["specinfer"]}, looks={"specinfer": " ^"}, **look)

    shown = ["dsbd", "beam_sampling", "sd", "specinfer"]
    return draw_panels(
        cells, COSTS, y, **_SHARED, draw=draw, label=_LABEL, keep={"decoder": shown}, subject=_OWN
    )


figure_4 = figure_5 = fronts


def figure_6(cells):
    """Perplexity against tokens/s and J/token."""
    return fronts(cells, "perplexity")


def figure_7(cells):
    """Average accepted width against score, speed and energy."""

    def draw(panel, **look):
        _draw_settings(panel, **look)
        said = "At the squares: width of beam sampling, which the paper's figure may not have."
        _draw_beams(panel, **look, caption=said)

    return draw_panels(
        cells, "beam_width", ("cell.score", *COSTS), **_SHARED, draw=draw, label=_LABEL,
        keep={"decoder": ["dsbd", "beam_sampling"]},
        subject=_OWN,
    )  # fmt: skip


def figure_8(cells):
    """Effect of the width threshold t."""
    return _effect(cells, "tree.threshold", "t")


def figure_9(cells):
    """Effect of the draft width."""
    return _effect(cells, "tree.width", "W_S")


def _draw_settings(panel, **look):
    panel.series(
        **look, keep=_OWN, markersize=3, faint=0.18,
        caption="A circle is a setting of DSBD (W_S x γ @ t).",
    )  # fmt: skip


def _draw_beams(panel, **look):
    """Beam sampling, each width beside its square, on the side of the farther neighbour."""
    drawn = panel.series(
        **look, keep={"decoder": ["beam_sampling"]}, mark="line", order="tree.width",
        markersize=2.8, faint=0.6,
    )  # fmt: skip
    for series in drawn:
        rows = series.rows.sort_values(panel.x)
        at = rows[panel.x]
        gaps = [inf, *(right - left for left, right in pairwise(at)), inf]
        for x, y, width, (left, right) in zip(
            at, rows[panel.y], rows.spec, pairwise(gaps), strict=True
        ):
            side = -1 if right < left else 1
            panel.plot.annotate(
                width, (x, y), xytext=(4 * side, 4), textcoords="offset points", fontsize=6.5,
                ha="left" if side > 0 else "right", va="center",
            )  # fmt: skip


def _effect(cells, hue, name):
    def draw(panel, **look):
        panel.series(faint=0.18, **look)
        panel.series(mark="front", linewidth=0.9, **look)

    return draw_panels(
        cells, COSTS, "cell.score", **_SHARED, draw=draw,
        hue=hue,
        label=f"{name} = {{{hue}:g}}",
        shade=0.9,
        keep=_OWN,
        heading=f"{{pair}}: {name}, DSBD{{marks}}",
        legend_columns=5,
        caption=f"DSBD's settings by {name}; steps: the Pareto front of each {name}, picked on "
        "these numbers, where it has several. The copy of the paper that was read does not name "
        "the axes of this figure: they are those of Figures 4 to 6.",
    )  # fmt: skip
