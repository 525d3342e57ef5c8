"""The comb paper's figure."""

from spec_bench.report.figures.grid import draw_panels


def figure_1(cells):
    """What is gained by verifying more nodes."""
    return draw_panels(
        cells,
        "wasted_nodes",
        "block_efficiency",
        keep={"decoder": ["sd", "comb"]},
        label="{decoder} {spec}",
        heading="{pair}{marks}",
    )
