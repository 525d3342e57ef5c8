"""Compares the speed of one request with the throughput of all, by number of requests that decode
together.

The more requests decode together, the less is gained by verifying a tree in one target call. The
speed-ups over plain decoding at equal concurrency show at how many requests speculation stops
paying.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.rows import (
    format_marked_decoder_and_tree,
    get_interval,
    read_results_file,
    refuse_or_separate_models,
    select_undoubted_rows,
)
from spec_bench.report.data.seeds import pool_seeds
from spec_bench.system.errors import UsageError

_PANEL = "cell.panel"
_TITLE = "cell.title"
PER_USER = "token_rate_per_request"
IN_ALL = "token_rate_end_to_end"
_GROUP = ["pair", "target", "task", "temperature"]
_LINE = ["decoder", "spec", "tree_attention", "batching", "engine", "device"]
_SPEEDUP = ["speedup", "speedup_low", "speedup_high"]
_TIMES = ("ttft_s_p50", "inter_token_s_p50", "latency_s_p50", "latency_s_p99")
_HEADS = (
    "decoder", "together", "tokens/s per user", "tokens/s in all", "speed-up",
    "TTFT p50", "per token p50", "latency p50", "latency p99",
)  # fmt: skip


class ThroughputLine(NamedTuple):
    """Rows of one decoder, ascending by the number of requests that decode together."""

    group_title: str
    title: str
    rows: pd.DataFrame


def split_throughput_lines(rows: pd.DataFrame) -> list[ThroughputLine]:
    """Splits rows by group and decoder. Raises UsageError if no row has a throughput."""
    valid_rows = rows[(rows.status != "failed") & rows[IN_ALL].notna() & rows[PER_USER].notna()]
    if valid_rows.empty:
        raise UsageError("no row has tokens/s of a request and of all: nothing was timed")
    lines = []
    for settings, group in valid_rows.groupby(_GROUP, dropna=False, sort=False):
        heading = "{0}, {2}, temperature {3:g}".format(*settings)
        for _, line in group.groupby(_LINE, dropna=False, sort=False):
            batch_mode = str((first_row := line.iloc[0])["batching"])
            arrivals = f", {batch_mode}" if batch_mode.startswith("open") else ""
            title = format_marked_decoder_and_tree(first_row) + arrivals
            lines.append(ThroughputLine(heading, title, line.sort_values("batch_size")))
    return lines


def describe_crossing(speedups_by_requests: Sequence[Sequence[float]]) -> str:
    """Describes at how many requests speculation stops paying. Points are (requests together,
    speed-up, low and high end of its interval), ascending. Returns "" for fewer than two points.
    """

    def join_numbers(numbers: Sequence[float]) -> str:
        return ", ".join(f"{number:g}" for number in numbers) or "none"

    if len(speedups_by_requests) < 2:
        return ""
    surely_above = join_numbers(
        [request_count for request_count, _, low, _ in speedups_by_requests if low > 1]
    )
    surely_below = join_numbers(
        [request_count for request_count, _, _, high in speedups_by_requests if high < 1]
    )
    for (fewer, ratio_before, *_), (greater, ratio_after, *_) in pairwise(speedups_by_requests):
        if ratio_before > 1 >= ratio_after:
            share = (ratio_before - 1) / (ratio_before - ratio_after)
            crossing = 2 ** (math.log2(fewer) + share * (math.log2(greater) - math.log2(fewer)))
            bounds = f"surely above at {surely_above}, surely below at {surely_below}"
            return f"the speed-up is 1 at about {crossing:.1f} requests together ({bounds})"
    if speedups_by_requests[-1][1] > 1:
        last_count = f"{speedups_by_requests[-1][0]:g} requests together"
        return f"pays up to {last_count}, surely at {surely_above}"
    counts = join_numbers([request_count for request_count, *_ in speedups_by_requests])
    return f"pays at none of {counts} requests together"


def draw_and_format_throughput(file: Path, mixed_models: bool = False) -> str:
    """Formats the throughputs of a results file as a text table, and draws its figure in the same
    folder. Raises UsageError if nothing was timed.
    """
    from rich.console import Console
    from rich.table import Table

    lines = split_throughput_lines(
        pool_seeds(
            refuse_or_separate_models(read_results_file(file, mixed_models)), RecordReader(file)
        )
    )
    console = Console(width=160)
    with console.capture() as capture:
        for group in dict.fromkeys(group for group, *_ in lines):
            table = Table(*_HEADS, box=None, title=group, title_justify="left")
            sentences = []
            for _, title, line in (item for item in lines if item[0] == group):
                for row in line.to_dict("records"):
                    gain = get_interval(row, "speedup")
                    rates = [f"{row[item]:.1f}" for item in (PER_USER, IN_ALL)]
                    times = ["" if pd.isna(row[item]) else f"{row[item]:.3f}" for item in _TIMES]
                    speed = f"{gain:.2f}" if gain else ""
                    table.add_row(title, f"{row['batch_size']:g}", *rates, speed, *times)
                valid_rows = select_undoubted_rows(line, "speedup")[
                    ["batch_size", *_SPEEDUP]
                ].dropna()
                points = valid_rows.to_numpy(dtype=float).tolist()
                if line.iloc[0].decoder != "ar" and (sentence := describe_crossing(points)):
                    sentences.append(f"{title}: {sentence}.")
            console.print(table, *sentences, sep="\n")
    draw_throughput(lines, file.parent / "throughput.png")
    return capture.get()


def draw_throughput(lines: Sequence[ThroughputLine], path: Path) -> None:
    """Draws, for each group, tokens/s of all requests against tokens/s of one (left), and the
    speed-up over plain decoding (right).
    """
    from spec_bench.report.figures.grid import Axis, draw_grid
    from spec_bench.report.figures.style import GREY, figure_settings_applied, save_figure

    cells = pd.concat(
        [line.assign(**{_PANEL: group, _TITLE: title}) for group, title, line in lines],
        ignore_index=True,
    )

    def draw_lines(panel: Any) -> None:
        look = {
            "hue": ("decoder", _TITLE),
            "label": f"{{{_TITLE}}}",
            "mark": "line",
        }
        if panel.y == IN_ALL:
            panel.series(**look, order="batch_size", write="{batch_size:g}")
        else:
            panel.series(**look, order="batch_size", dodge=1.03)
            panel.plot.axhline(1.0, color=GREY, linewidth=0.8, zorder=0)

    with figure_settings_applied():
        figure = draw_grid(
            cells, "batch_size", "speedup", draw=draw_lines,
            down=_PANEL,
            by_column=[{"x": PER_USER, "y": IN_ALL, "title": f"{{{_PANEL}}}"}, {}],
            axes={
                PER_USER: Axis("tokens/s of a request", low=0),
                IN_ALL: Axis("tokens/s of all", low=0),
                "batch_size": Axis("requests together", log=True),
                "speedup": Axis("speed-up at equal concurrency", low=0),
            },
            legend_columns=3,
        )  # fmt: skip
        save_figure(figure, path.parent, path.stem, ("png",), dpi=150)
