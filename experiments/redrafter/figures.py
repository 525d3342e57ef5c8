"""ReDrafter's figures (arXiv:2403.09919)."""

from math import sqrt

import pandas as pd

from spec_bench.report.figures.grid import Axis, draw_panels
from spec_bench.report.figures.style import GREY
from spec_bench.report.papers.pairs import format_parameter_count

from .heads import ACCURACY, GUESSES, NO_RNN, grid_of, heads_of, shown_heads

_MEDIAN = "nodes_per_call_p50"
_SIDES = {"train": "training", "validation": "validation"}


def figure_3(cells):
    """Accuracy of the heads at t+1 to t+5, Medusa against ReDrafter."""
    looks = dict.fromkeys(["redrafter_2", "redrafter_4", "redrafter"], "green")
    return draw_panels(
        cells,
        "guess",
        "accuracy",
        of=_best_of_heads(cells.given),
        hue="head",
        across="side",
        title="{side}",
        mark="line",
        label="{named}\n{blocks:block}, {size}",
        looks={"medusa": "black", **looks, NO_RNN: "sky"},
        dashed=[NO_RNN],
        capsize=1.5,
        share="y",
        axes={"accuracy": Axis("accuracy of the best guess", low=0)},
        width=0.8,
        height=2.9,
        rest=0,
        heading="",
        legend_columns=3,
        bars="Bars: 95%, as if each held-out dialogue were one draw.",
        note="Of each kind, of ReDrafter of each size shown, the head with the highest mean "
        "accuracy in validation. The paper shows ReDrafter with two blocks and with four. "
        "ReDrafter's guess i is judged with the right tokens before it given (teacher forcing), "
        "Medusa's without. The paper's accuracies are on Alpaca Eval; these are on dialogues "
        "held out from training, whose answers are the target's own.",
    )


def figure_4(cells):
    """Accuracy at t+5 against speed, heads with and without the recurrence."""
    rows = grid_of(heads_of(cells.given), cells.rows())
    rows["named"] = rows["head"].replace({"redrafter": "with recurrence", NO_RNN: "without"})

    def draw(panel, **look):
        panel.series(**look)
        panel.plot.legend(loc="lower left", bbox_to_anchor=(0, 1), title="", frameon=False)

    return draw_panels(
        cells, ACCURACY, ("token_rate", "block_efficiency"), draw=draw,
        hue="head",
        label="{named} ({count} heads){correlation}",
        looks={"redrafter": "green", NO_RNN: "sky"},
        markersize=5,
        of=rows,
        keep={"temperature": 0},
        axes={
            ACCURACY: Axis("validation accuracy at t+5"),
            "token_rate": Axis("tokens/s"),
            "block_efficiency": Axis("tokens per target call"),
        },
        height=3,
        rest=0,
        heading="{pair}: beams {specs}{marks}",
        legend_columns=0,
        note="A mark is a head (number of blocks, learning rate); r: Pearson's correlation. The "
        "paper prints 0.798 with and 0.907 without recurrence, for speed. Each "
        "head decoded in a job of its own, so that speeds hold what the machine did meanwhile.",
    )  # fmt: skip


def figure_5(cells):
    """Accepted tokens per step and compression of the beam against beam width."""
    rows = cells.rows()
    if "nodes_per_call_p01" in rows:
        ends = {f"{_MEDIAN}_low": rows.nodes_per_call_p01}
        rows = rows.assign(**ends, **{f"{_MEDIAN}_high": rows.nodes_per_call_p99})
    return draw_panels(
        cells, "tree.width", "block_efficiency", draw=_draw_beams,
        mark="line",
        of=rows,
        files=("pair", "task"),
        together="max_new_tokens",
        keep={"decoder": ["redrafter"], "temperature": 0},
        by_column=[{}, {"x": "tree.nodes", "y": _MEDIAN}],
        axes={
            "tree.width": Axis("beam width", log=True),
            "block_efficiency": Axis("tokens per target call", low=1),
            "tree.nodes": Axis("tokens of all beams (width × length)", log=True),
            _MEDIAN: Axis("nodes after merging", log=True),
        },
        height=3.1,
        rest=0.2,
        heading="{pair}, {task}{marks}",
        bars="",
    )  # fmt: skip


def _draw_beams(panel, **look):
    """Left: tokens per call; right: nodes, where nothing is merged, and how many times fewer."""
    if panel.y != _MEDIAN:
        panel.series(
            **look, hue="max_new_tokens", shade=0.85, dodge=1.04,
            label="up to {max_new_tokens:g} tokens",
            caption="Left: bars are 95% intervals over prompts; marks of one place stand side by "
            "side. An answer that ends before its limit is as long as it is.",
        )  # fmt: skip
        return
    (series,) = panel.series(
        **look, keep={"max_new_tokens": "max"}, label="", looks={"": " o"}, elinewidth=0.8,
        capsize=2, caption="Right: median over target calls, bars from the 1st to the 99th "
        "percentile; dashed: nothing merged. The root is not counted.",
    )  # fmt: skip
    panel.format_scales_and_ticks()
    ticks = panel.list_values_in_file(panel.x)
    plot = panel.plot
    plot.plot([ticks[0], ticks[-1]], [ticks[0], ticks[-1]], "--", color=GREY, linewidth=0.8)
    plot.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    for _, row in series.rows.dropna(subset="cell.merged").iterrows():
        place = (row[panel.x], row[panel.y])
        text = f"{row['cell.merged']:.2f}×"
        plot.annotate(text, place, xytext=(3, -9), textcoords="offset points", fontsize=6)
    plot.set_xlim(right=2 * ticks[-1])  # room for the last text


def figure_6(cells):
    """Speed and throughput against batch size, with and without tree attention."""
    above = "Above: all decoders, with tree attention."
    below = "Below: ReDrafter with merged beams in one row, and with every beam as a row."

    def draw(panel, **look):
        if "cell.attention" in panel.keep:
            panel.series(hue=("decoder", "spec"), caption=above, **look)
        else:
            panel.series(
                hue=("decoder", "spec", "cell.attention"), caption=below, **look,
                label="{decoder} {spec}, {cell.attention}{marks}",
            )  # fmt: skip

    return draw_panels(
        cells, "batch_size", ("token_rate_per_request", "token_rate"), draw=draw,
        mark="line",
        markersize=3.5,
        paths_as_rows=True,
        keep={"temperature": 0},
        needs={"batch_size": 2},
        by_row=[
            {"keep": {"cell.attention": ["tree attention"]}},
            {"keep": {"decoder": ["redrafter"], "cell.ways": [2]}},
        ],
        share="x",
        axes={
            "batch_size": Axis("batch size", log=True),
            "token_rate_per_request": Axis("speed: tokens/s of a request", low=0),
            "token_rate": Axis("throughput: tokens/s of all", low=0),
        },
        height=2.6,
        rest=0.4,
        heading="{pair}, {tasks}",
        legend_columns=3,
        note="Speed: delivered tokens over a request's latency, prefill included. Throughput: over "
        "the seconds of decoding.",
    )  # fmt: skip


def _best_of_heads(rows):
    """How often the best head of each kind and size is right: a row per head, side and guess.

    Bars are those of validation, as if each held-out dialogue were one draw: training's positions
    were learned.
    """
    found = []
    for kind, head in shown_heads(heads_of(rows)).items():
        named = "ReDrafter" if kind in ("redrafter_2", "redrafter_4") else kind
        for side, title in _SIDES.items():
            draws = head.get("validation dialogues") if side == "validation" else None
            for guess in GUESSES:
                share = head[f"{side} {guess}"]
                known = draws is not None and not pd.isna(draws)
                variance = share * (1 - share) / float(draws) if known else float("nan")
                half = 1.96 * sqrt(variance)  # of the 95% interval
                found.append(
                    {
                        **{"head": kind, "side": title, "guess": guess, "blocks": head["blocks"]},
                        "named": named,
                        "size": format_parameter_count(int(head["parameters"])),
                        "accuracy": share,
                        **{"accuracy_low": share - half, "accuracy_high": share + half},
                    }
                )
    return pd.DataFrame(found)
