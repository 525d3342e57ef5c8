"""The figure of today's drafters."""

from spec_bench.report.figures.grid import Axis, draw_panels


def figure_1(cells):
    """At equal nodes: a colour a drafter, of one drafter's trees each a marker."""
    nodes = {"7": ["7", "1x7"], "25": ["10x7@25", "eagle_25", "5x5"]}
    return draw_panels(
        cells, "block_efficiency", "speedup",
        label="{decoder} {spec}",
        across="temperature",
        guide=1.0,
        markersize=5,
        axes={"speedup": Axis("speedup over AR")},
        width=[0.65, 0.9],
        files=("pair", "task"),
        heading="{pair}, {tasks}{marks}",
        by_row=[
            {"keep": {"spec": specs}, "title": f"{count} nodes, temperature {{temperature:g}}"}
            for count, specs in nodes.items()
        ],
        looks={
            "sd": "blue o", "opt_tree": "blue s", "eagle3_sd": "purple o", "eagle3": "purple s",
            "mtp": "orange o", "mtp_eagle3": "orange s", "dflash": "green o",
            "dflash_ddtree": "green s", "own_blocks": "vermillion o",
            "own_blocks_eagle3": "vermillion s", "suffix_decoding": "sky X",
            "prompt_lookup": "sky P", "lookup_vote": "sky D", "token_recycling": "sky v",
        },
        note="A colour is a drafter; light blue: texts looked up.",
        share="xy",
        rest=1.7,
        legend_columns=[2, 3],
    )  # fmt: skip
