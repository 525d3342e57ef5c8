"""Draws docs/wandb.png: a W&B report of two committed experiments, panel by panel.

    python scripts/docs/wandb_report.py

Headings, panels, their order, names, runs and colours are those of the JSON that a dry run writes;
the texts are its Markdown, cut. The numbers are those that the sink would log of these runs: a row
of the table, and a line for each record. W&B's own look is another.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from textwrap import shorten

import matplotlib.pyplot as plt
import pandas

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from spec_bench.__main__ import run_command  # noqa: E402
from spec_bench.metrics.quality import score_each_answer  # noqa: E402
from spec_bench.records import parquet  # noqa: E402
from spec_bench.report.data.rows import read_rows  # noqa: E402
from spec_bench.report.figures import style  # noqa: E402
from spec_bench.report.page.build import find_results_file  # noqa: E402
from spec_bench.sinks.sink import LoggedCell  # noqa: E402
from spec_bench.sinks.wandb import build_history_lines  # noqa: E402

RESULTS = ROOT / "results"
EXPERIMENTS = ("smollm2-h100", "dsbd-one-cache")
ACROSS, WIDE, HIGH, LINE = 4, 12.0, 2.2, 0.13  # panels side by side; inches, of panels and a line
MOST_LINES, MOST_CELLS, LETTERS = 14, 8, 44  # of a text, and of its tables


_BELOW = {"textcoords": "offset points", "ha": "center", "va": "top"}


def read_blocks():
    """Returns the blocks of the report's JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        given = [*EXPERIMENTS, "--results", str(RESULTS), "--dry-run", str(file)]
        assert run_command("report wandb", given) == 0
        blocks = json.loads(file.read_text(encoding="utf-8"))["blocks"]
    return [block for block in blocks if block["type"] != "paragraph"]


def read_logged():
    """Returns of each run id the name, the summary and the history."""
    logged = {}
    for name in EXPERIMENTS:
        table = find_results_file(name, RESULTS)
        packed = parquet.read_records(table.with_name("records.parquet"))
        for row in read_rows([table]).to_dict("records"):
            scores = packed.get_scores(row["run_id"])
            alone = {score: score_each_answer(score, each) for score, each in scores.items()}
            cell = LoggedCell(None, {}, packed.get_generations(row["run_id"]), table, scores=alone)
            title = f"{row['decoder']} {row['spec']}"
            logged[row["run_id"]] = title, row, pandas.DataFrame(build_history_lines(cell))
    return logged


def runs_of(runset, logged):
    """Returns the runs of a set, in its order."""
    (condition,) = runset["filters"]["filters"]
    (order,) = runset["sort"]["keys"]
    key = order["key"]["name"]
    runs = [(run_id, *logged[run_id]) for run_id in condition["value"]]
    return sorted(runs, key=lambda run: -run[2].get(key, 0.0))


def draw_panel(plot, panel, runs, colours):
    """Draws one panel of W&B's."""
    config, kind = panel["config"], panel["viewType"]
    plot.set_title(config["chartTitle"], loc="left", fontsize=8)
    if kind == "Bar Chart":
        of = config["metrics"]
        for place, (run_id, _, summary, _) in enumerate(runs):
            for bar, name in enumerate(of):
                alpha = 1.0 if not name.endswith(("_low", "_high")) else 0.4
                at = place + 0.26 * (bar - (len(of) - 1) / 2)
                plot.barh(at, summary[name], 0.24, color=colours[run_id], alpha=alpha)
        plot.set_yticks(range(len(runs)), [title for _, title, *_ in runs], fontsize=6)
        plot.invert_yaxis()
    elif kind == "Scatter Plot":
        x, y = (config[axis].removeprefix("summary:") for axis in ("xAxis", "yAxis"))
        near = {}
        for run_id, title, summary, _ in runs:
            plot.scatter(summary[x], summary[y], color=colours[run_id], s=18)
            near.setdefault((round(summary[x]), round(summary[y], 1)), []).append(title)
        for place, titles in near.items():
            plot.annotate("\n".join(titles), place, (0, -4), fontsize=5, **_BELOW)
        plot.margins(0.15, 0.2)
        plot.set(xlabel=x, ylabel=y)
    else:
        (name,) = config["metrics"]
        for run_id, _, _, history in runs:
            if name in history:
                plot.plot(history.index, history[name], color=colours[run_id], lw=0.8)
        plot.set(xlabel=config["xAxisTitle"])


def lines_of(text):
    """Returns a block of Markdown as lines, its tables in columns, both cut."""
    rows = [
        [shorten(cell.strip(" *"), LETTERS, placeholder="..") for cell in line.split("|")[1:-1]]
        if line.startswith("|")
        else [shorten(line, 4 * LETTERS, placeholder="..")]
        for line in re.sub(r"</?u>", "", text).splitlines()
        if line.strip() and not re.match(r"- |[|\s:-]+$|```|Missing", line)
    ]
    cells = [row[:MOST_CELLS] for row in rows]
    widths = [
        max((len(r[n]) for r in cells if 1 < len(r) > n), default=0) for n in range(MOST_CELLS)
    ]
    shown = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=False)) for r in cells]
    if len(shown) > MOST_LINES:
        shown[MOST_LINES // 2 : -MOST_LINES // 2] = ["..."]
    return shown


def draw_report():
    """Draws the report, top to bottom."""
    logged, parts = read_logged(), []
    for block in read_blocks():
        if parts and parts[-1][1] == "panels" and parts[-1][2][0][0]["viewType"].startswith("Run"):
            parts.append(
                (LINE, "text", "(and so on: more panels, and those of each pair and task)")
            )
            break
        if block["type"] == "heading":
            title = shorten(block["children"][0]["text"], 3 * LETTERS, placeholder="..")
            parts.append((0.3, "heading", title))
        elif block["type"] == "markdown-block":
            lines = lines_of(block["content"])
            parts.append((LINE * len(lines) + 0.15, "text", "\n".join(lines)))
        else:
            grid = block["metadata"]
            panels = grid["panelBankSectionConfig"]["panels"]
            if panels[0]["viewType"] == "Weave":
                parts.append((LINE, "text", "(W&B's own table: every column of every row)"))
                continue
            runs = runs_of(grid["runSets"][0], logged)
            parts.append((HIGH, "panels", (panels[:ACROSS], runs, grid["customRunColors"])))
    heights = [height for height, *_ in parts]
    figure = plt.figure(figsize=(WIDE, sum(heights)), layout="constrained")
    for row, (_, kind, content) in zip(
        figure.subfigures(len(parts), 1, height_ratios=heights), parts, strict=True
    ):
        if kind == "panels":
            panels, runs, colours = content
            plots = row.subplots(1, ACROSS)
            for plot, panel in zip(plots, panels, strict=False):
                draw_panel(plot, panel, runs, colours)
            for plot in plots[len(panels) :]:
                plot.remove()
        else:
            look = {"fontsize": 10, "weight": "bold"} if kind == "heading" else {}
            look = look or {"family": "monospace", "fontsize": 7}
            row.text(0.005, 0.5, content.replace("$", r"\$"), va="center", **look)
    return figure


if __name__ == "__main__":
    with style.figure_settings_applied():
        style.save_figure(draw_report(), ROOT / "docs", "wandb", ("png",), dpi=90)
    print(ROOT / "docs" / "wandb.png")
