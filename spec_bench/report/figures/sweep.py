"""Draws the picture of any results file: a bar for each decoder and tree, the fastest on top.

It shows speed-ups over plain decoding, or block efficiency if no speed-up was measured.
"""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill as wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from spec_bench.report.data.rows import (
    SERVER,
    Group,
    Row,
    compute_error_bars,
    find_filled_column,
    format_marked_decoder_and_tree,
    format_prompt_count,
    format_title_without_pair,
    format_tree_titles_with_drafts,
    get_timing_doubt,
    to_rows,
)
from spec_bench.report.figures.grid import wrap_single_axes
from spec_bench.report.figures.style import ReportFigure, figure_settings_applied, save_figure
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import ENDS
from spec_bench.vocabulary.decoders import COLOURS, DRAFT_MODELS, get_decoder_parts
from spec_bench.vocabulary.numbers import format_count

_MEASURES = {
    "speedup": "speed-up over plain decoding",
    "block_efficiency": "block efficiency (tokens per target call)",
}
_FAMILIES = {
    "draft model, one path": COLOURS["blue"].light,
    "draft model, tree": COLOURS["vermillion"].light,
    "trained head": COLOURS["purple"].light,
    "no draft model": COLOURS["green"].light,
    "another engine": "#999999",
}
_DRAFTLESS = ("none", "lookup", "suffix", "recycling", "own_blocks", "first_match")
_PATHS = ("chain", "dynamic_chain", "guess_or_draft")  # trees of one path
_PLACE = ("device", "machine", "threads")
_NUMBER: dict[str, Any] = {
    "xytext": (4, 0),
    "textcoords": "offset points",
    "va": "center_baseline",
    "fontsize": 7,
    "bbox": {
        "boxstyle": "square,pad=0.1",
        "color": "white",
        "alpha": 0.8,
    },
}
# maximum number of bars in a panel, of panels, and of panels side by side
_BARS = 30
_PANELS = 9
_ACROSS = 3
_DOUBTFUL = "////"


def save_sweep_picture(groups: Sequence[Group], path: Path) -> bool:
    """Draws the picture as PNG. Returns False, and writes nothing, if no row has a value."""
    with figure_settings_applied():
        figure = draw_sweep_bars(groups)
        if figure is not None:
            save_figure(figure, path.parent, path.stem, ("png",), dpi=150)
    return figure is not None


def draw_sweep_bars(groups: Sequence[Group], ax: Any = None) -> Any:
    """Draws a panel of bars for each group; returns the matplotlib figure, None if no row has a
    value.

    A panel has at most the 30 fastest bars, a picture at most nine panels; the heading names what
    is left out. If ``ax`` is given, the only panel is drawn on it, and ``ax`` is returned.
    """
    valid_rows = _drop_failed_and_baseline_rows(pd.concat([group.rows for group in groups]))
    measure = find_filled_column(valid_rows, _MEASURES)
    if measure is None:
        return None
    panels = [
        (format_title_without_pair(group), bars)
        for group in groups
        if len(bars := _make_bar_rows(group, measure))
    ]
    if confirmations := [panel for panel in panels if panel[1].iloc[0].get("stage") == "confirm"]:
        panels = confirmations  # a search's screening only selects trees to confirm
    panels_drawn = panels[:_PANELS]
    bars_drawn = pd.concat([bars for _, bars in panels_drawn])
    # All panels have the same order, by the geometric mean over panels.
    means = np.log(bars_drawn[measure].clip(lower=1e-9)).groupby(bars_drawn["bar"]).mean()
    order = list(means.sort_values(kind="stable").index)
    labels = order[-_BARS:]
    columns = min(len(panels_drawn), _ACROSS)
    lines = -(-len(panels_drawn) // columns)
    titles = [wrap(title, 84 // columns) if len(panels) > 1 else "" for title, _ in panels_drawn]
    axes = wrap_single_axes(ax, [title for title, _ in panels])
    if ax is None:
        rows = 0.45 + 0.26 * len(labels) + 0.17 * max(title.count("\n") for title in titles)
        size = (2.0 + (5.2, 6.4, 8.0)[columns - 1], lines * rows + 1.15)
        figure = ReportFigure(size, layout="constrained")
        axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for plot, title, (_, bars) in zip(axes.flat, titles, panels_drawn, strict=False):
        _draw_bar_panel(plot, bars[bars["bar"].isin(labels)], labels, measure)
        plot.set_title(title, loc="left")
    for plot in axes.flat[len(panels_drawn) :]:
        plot.remove()
    ends = [name for name in (measure, f"{measure}_high") if name in bars_drawn]
    highest = bars_drawn[ends].max().max()
    axes[0, 0].set(ylim=(-0.6, len(labels) - 0.4), xlim=(0, highest * (1.06 + 0.05 * columns)))
    axes[0, 0].set_yticks(range(len(labels)), labels)
    families = [name for name in _FAMILIES if name in set(bars_drawn["family"])]
    patches = [Patch(color=_FAMILIES[name], label=name) for name in families]
    if bars_drawn["doubtful"].any():
        label = "stalled or disturbed: decides nothing"
        patches.append(Patch(facecolor="grey", edgecolor="white", hatch=_DOUBTFUL, label=label))
    if ax is not None:
        ax.legend(handles=patches, loc="lower right", frameon=False)
        return ax
    columns = len(families) if len(patches) == len(families) else 3
    figure.legend(handles=patches, loc="outside lower left", ncols=columns, frameon=False)
    heading = _format_heading(panels, measure, len(order) - _BARS, len(panels) - _PANELS)
    figure.suptitle(heading, x=0.01, ha="left", fontsize=9)
    return figure


def _drop_failed_and_baseline_rows(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows.status != "failed") & (rows.decoder != "ar")]


def _make_bar_rows(group: Group, measure: str) -> pd.DataFrame:
    """Selects a group's cells that have a value, and adds ``bar`` (the label), ``family`` (the kind
    of decoder, which has a colour) and ``doubtful`` (whether the times are doubtful).
    """
    rows = group.rows.assign(spec=format_tree_titles_with_drafts(group.rows))
    rows = _drop_failed_and_baseline_rows(rows)[lambda frame: frame[measure].notna()]
    texts = []
    for row in to_rows(rows):
        mark = "" if row["lossless"] == "unaudited" else names.MARKS.get(str(row["lossless"]), "")
        name = format_marked_decoder_and_tree(row, with_stalls=False)
        texts.append(f"{name} ({mark})" if mark else name)
    rows = rows.assign(
        bar=texts,
        family=[_get_colour_family(row) for row in to_rows(rows)],
        doubtful=[bool(get_timing_doubt(row, measure)) for row in to_rows(rows)],
    )
    return rows.drop_duplicates("bar")


def _get_colour_family(row: Row) -> str:
    if row["lossless"] == "unaudited":
        return "another engine"
    drafter, tree, _ = get_decoder_parts(str(row["decoder"]))
    draft = row.get("draft", drafter not in _DRAFTLESS)
    if pd.isna(draft) or not draft:
        return "no draft model"
    if drafter not in DRAFT_MODELS:
        return "trained head"
    return "draft model, one path" if tree in _PATHS else "draft model, tree"


def _draw_bar_panel(
    plot: Any, bars: pd.DataFrame, labels_in_order: Sequence[str], measure: str
) -> None:
    places = [labels_in_order.index(name) for name in bars["bar"]]
    ends = bars.reindex(columns=[measure, *(f"{measure}{end}" for end in ENDS)])
    lengths = compute_error_bars(ends.itertuples(index=False, name=None))
    plot.barh(
        places,
        bars[measure],
        height=0.7,
        color=bars["family"].map(_FAMILIES),
        hatch=bars["doubtful"].map({True: _DOUBTFUL, False: ""}),
        edgecolor="white",
        linewidth=0,
    )
    plot.errorbar(
        bars[measure],
        places,
        xerr=lengths,
        fmt="none",
        ecolor="black",
        lw=0.9,
        capsize=2,
    )
    for place, value, upper in zip(places, bars[measure], lengths[1], strict=True):
        plot.annotate(f"{value:.2f}", (value + np.nan_to_num(upper), place), **_NUMBER)
    plot.axvline(
        1,
        color="black",
        linewidth=0.9,
        linestyle="--",
        zorder=2,
    )
    plot.grid(axis="y", visible=False)
    plot.set_axisbelow(True)
    plot.tick_params(labelbottom=True)
    plot.set_xlabel(_MEASURES[measure])


def _format_heading(
    panel_bars: Sequence[tuple[str, pd.DataFrame]],
    column: str,
    cells_left_out: int,
    panels_left_out: int,
) -> str:
    """Formats the heading: what is drawn, for which pair, task and prompts, on which device, and
    what is left out.
    """
    rows = pd.concat([bars for _, bars in panel_bars])
    title = panel_bars[0][0] if len(panel_bars) == 1 else ""
    facts = (
        ", ".join(dict.fromkeys(map(str, rows.pair))),
        title,
        format_prompt_count(rows),
        _format_device(rows),
    )
    missing = [f"the {cells_left_out} slowest decoders"] if cells_left_out > 0 else []
    missing += [f"{panels_left_out} more tasks and settings"] if panels_left_out > 0 else []
    measure = f"{_MEASURES[column][0].upper()}{_MEASURES[column][1:]}"
    has_low = rows.reindex(columns=[f"{column}_low"]).notna()
    intervals = ", with 95% intervals" if has_low.any(axis=None) else ""
    if intervals and not has_low.all(axis=None):
        intervals += " where known"
    lines = [
        f"{measure}{intervals}; dashed: plain decoding",
        ", ".join(filter(None, facts)),
    ]
    return "\n".join([*lines, *([f"Not drawn: {' and '.join(missing)}."] if missing else [])])


def _format_device(rows: pd.DataFrame) -> str:
    """Describes the device that decoded; "" if the rows name several."""
    values_by_name = {name: {*rows[name].dropna()} for name in _PLACE if name in rows}
    if any(len(values) > 1 for values in values_by_name.values()):
        return ""
    device, machine, threads = (next(iter(values_by_name.get(name, ())), "") for name in _PLACE)
    if device != "cpu":
        return "a server" if device == SERVER else str(device)
    count = format_count(float(threads), "thread") if threads else ""
    facts = ", ".join(filter(None, (machine, count)))
    return f"CPU ({facts})" if facts else "CPU"
