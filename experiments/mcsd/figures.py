"""MCSD's figures (arXiv:2401.06706)."""

import pandas as pd

from spec_bench.report.data.rows import drop_duplicates_with_fewer_prompts, format_prompt_count
from spec_bench.report.figures.grid import Axis, draw_panels
from spec_bench.report.figures.style import GREY


def acceptance(cells):
    """Figures 3 and 5: acceptance rate against the number of candidates."""

    def draw(panel, **look):
        panel.series(
            **look, mark="line", label="{pair}{marks}", markersize=3.5, elinewidth=0.7,
            capsize=1.5,
        )  # fmt: skip
        panel.series(
            **look, printed=True, looks={"": " x"}, label="", markersize=6, alpha=0.6,
            caption="Crosses: what the paper prints.",
        )  # fmt: skip

    return draw_panels(
        cells, "tree.width", "acceptance_rate", draw=draw,
        hue="pair",
        keep={"decoder": ["mcsd_wor"], "tree.form": ["number"]},  # one level: the number is k
        down="temperature",
        across="task",
        title="{task}, temperature {temperature:g}",
        share="xy",
        axes={"tree.width": Axis("candidates k", log=True)},
        width=[0.65, 0.95, 1.0],
        height=2.1,
        heading="",
    )  # fmt: skip


figure_3 = figure_5 = acceptance


def figure_4(cells):
    """Speedup against block efficiency of every k-configuration of two levels: confirmed ones over
    grey ones, which a search screened on few prompts.
    """
    rows = cells.rows()
    two = (rows["tree.form"] == "levels") & (rows["tree.depth"] == 2)
    rows = rows[two & (rows.decoder == "mcsd_wor")]
    stages = rows.stage.fillna("confirm") if "stage" in rows else "confirm"
    # Both stages in one picture, though each has prompts of its own.
    rows = drop_duplicates_with_fewer_prompts(
        rows.assign(stage=stages).drop(columns="prompts_digest", errors="ignore")
    )
    rows = rows.sort_values(["pair", "task", "temperature"], kind="stable")
    told = {
        stage: format_prompt_count(rows[rows.stage == stage]) for stage in ("confirm", "screen")
    }
    note = [f"{told['confirm']} a cell."] if told["confirm"] else []
    if told["screen"]:
        note = [f"Coloured: confirmed on {told['confirm']}."] if told["confirm"] else []
        note += [f"Grey: screened on {told['screen']}, which is no evidence."]
    return draw_panels(
        cells, "block_efficiency", "speedup", draw=_draw_search,
        marker="tree.paths",
        shape="{tree.paths:path}",
        markersize=5,
        faint=0.3,
        write="{spec}",
        of=rows.drop(columns="prompts", errors="ignore"),
        needs={"spec": 2},
        together="stage",
        across=("pair", "task", "temperature"),
        title="{pair}{marks}, {task}, temperature {temperature:g}",
        wrap=2,
        guide=1.0,
        axes={"speedup": Axis("speedup over AR")},
        width=[0.62, 1.0],
        height=2.9,
        heading="",
        legend_columns=[3, 5],
        bars="Bars: 95% intervals over prompts; long ones leave their panel.",
        note=f"k1-k2: children at the first and second level. {' '.join(note)}",
    )  # fmt: skip


def _draw_search(panel, **look):
    """Few prompts have bars so long that the marks would lie on one heap: marks set the limits."""
    found = panel.series(
        keep={"stage": "screen"}, hue=(), looks={"": GREY}, label="screened", **look
    )
    found += panel.series(
        keep={"stage": "confirm"}, hue="tree.order", label="{tree.order} widths",
        looks={"decreasing": "blue", "equal": "green", "increasing": "vermillion"}, **look,
    )  # fmt: skip
    for side, column in (("x", panel.x), ("y", panel.y)):
        marks = pd.concat([series.rows[column] for series in found])
        room = 0.18 * (marks.max() - marks.min()) or 0.1
        getattr(panel.plot, f"set_{side}lim")(marks.min() - room, marks.max() + room)
