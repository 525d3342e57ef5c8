"""EAGLE's figures: the published trees, one head under every rule, who drafts."""

from spec_bench.report.figures.grid import Axis, draw_panels

_FRONT = {
    "across": "temperature",
    "guide": 1.0,
    "markersize": 5,
    "axes": {"speedup": Axis("speedup over AR")},
    "width": [0.65, 0.9],
    "heading": "{pair}, {tasks}{marks}",
}


def figure_1(cells):
    """MT-bench: speed-up over plain decoding against block efficiency, the published trees."""
    return draw_panels(
        cells, "block_efficiency", "speedup", **_FRONT,
        keep={"decoder": ["eagle", "eagle2", "eagle3"]},
        label="{decoder}",
        write="{spec}",
        title="temperature {temperature:g}",
        share="y",
        height=2.8,
        legend_columns=3,
    )  # fmt: skip


def figure_2(cells):
    """One head under every rule: block efficiency by nodes and temperature.

    A colour a tree, each rule a marker; traversal is dashed.
    """
    drawn = ["sd", "block", "spectr", "optimal", "spectr_traversal", "mcns", "specinfer"]
    drawn = [f"eagle3_{name}" for name in (*drawn, "specinfer_traversal")]
    without = ["eagle3_rsd_c", "eagle3_traversal", "eagle3_top_and_sample", "eagle3_eagle"]
    without += ["eagle_traversal", "eagle_rsd_s", "eagle_rsd_s_traversal", "eagle3_dyspec"]
    without += ["eagle3_dyspec_traversal", "eagle3"]
    return draw_panels(
        cells, "nodes_per_call", "block_efficiency",
        mark="line",
        label="{decoder}",
        files=("pair", "task"),
        across="temperature",
        heading="{pair}, {tasks}{marks}",
        by_row=[
            {"keep": {"decoder": drawn},
             "title": "with replacement, temperature {temperature:g}"},
            {"keep": {"decoder": without},
             "title": "without, or likeliest, temperature {temperature:g}"},
        ],
        dashed=[name for name in (*drawn, *without) if name.endswith(("traversal", "block"))],
        markersize=3.5,
        capsize=1.5,
        faint=0.35,
        dodge=0.55,
        share="xy",
        axes={"nodes_per_call": Axis("nodes to verify", ticks=(5, 10, 25))},
        width=[0.65, 0.95, 1.0],
        height=2.6,
        rest=1.7,
        legend_columns=[1, 2, 3],
        note="Marks of one place stand side by side. Dashed: traversal or block verification. All "
        "trees but the chain of 10 are five levels deep. At temperature 0 what is drawn with "
        "replacement collapses into a chain.",
    )  # fmt: skip


def figure_3(cells):
    """Who drafts, at equal nodes: a colour a drafter, of one drafter's trees each a marker."""
    nodes = {"5": ["5", "chain_5", "1x5"], "25": ["10x5@25", "eagle_25", "5x5"]}
    return draw_panels(
        cells, "block_efficiency", "speedup", **_FRONT,
        files=("pair", "task"),
        label="{decoder} {spec}",
        by_row=[
            {"keep": {"spec": specs}, "title": f"{count} nodes, temperature {{temperature:g}}"}
            for count, specs in nodes.items()
        ],
        looks={
            "sd": "blue o", "opt_tree": "blue s", "rsd_s": "blue D", "medusa": "black ^",
            "redrafter": "green v", "eagle_sd": "orange o", "eagle2": "orange s",
            "eagle": "orange D", "eagle3_sd": "purple o", "eagle3": "purple s",
            "eagle3_eagle": "purple D", "prompt_lookup": "sky P", "lookup_vote": "sky X",
        },
        note="A colour is a drafter; blue: the draft model, whichever its tree.",
        share="xy",
        rest=1.5,
        legend_columns=[2, 4],
    )  # fmt: skip
