"""Speed of one request against throughput of all: rows of one decoder by how many are under way.

The more requests decode together, the less a target call that verifies a tree is worth: from where
on speculation stops paying is read off the speed-ups over plain decoding at equal concurrency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import read_results
from spec_bench.report.data.seeds import pooled
from spec_bench.vocabulary import names

PER_USER, IN_ALL = "token_rate_per_request", "token_rate_end_to_end"
_GROUP = ["pair", "target", "task", "temperature"]
_LINE = ["decoder", "spec", "tree_attention", "batching", "engine", "device"]
_TIMES = ("ttft_s_p50", "inter_token_s_p50", "latency_s_p50", "latency_s_p99")
HEADS = (
    "decoder", "together", "tokens/s per user", "tokens/s in all", "speed-up",
    "TTFT p50", "per token p50", "latency p50", "latency p99",
)  # fmt: skip


def lines_of(rows: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """(title of the group, title of the line, its rows by requests under way) of all that have a
    throughput.

    Raises:
        ValueError: no row tells how fast several requests were.
    """
    timed = rows[(rows.status != "failed") & rows[IN_ALL].notna() & rows[PER_USER].notna()]
    if timed.empty:
        raise ValueError("no row has tokens/s of a request and of all: nothing was timed")
    lines = []
    for told, group in timed.groupby(_GROUP, dropna=False, sort=False):
        heading = "{0}, {2}, temperature {3:g}".format(*told)
        for _, line in group.groupby(_LINE, dropna=False, sort=False):
            lines.append((heading, _title(line.iloc[0]), line.sort_values("batch_size")))
    return lines


def _title(row: Mapping[str, Any]) -> str:
    tree = "" if row["spec"] == "-" else f" {row['spec']}"
    rows = "" if row["tree_attention"] in (True, "True") else ", paths as rows"
    arrivals = f", {row['batching']}" if str(row["batching"]).startswith("open") else ""
    return f"{names.decoder(str(row['decoder'])).title}{tree}{rows}{arrivals}"


def crossing(points: Sequence[tuple[float, float, float, float]]) -> str:
    """From where on speculation stops paying, in words.

    Args:
        points: (requests together, speed-up, its interval's ends), rising.
    """
    if len(points) < 2:
        return ""
    surely = [together for together, _, low, _ in points if low > 1]
    never = [together for together, _, _, high in points if high < 1]
    for (few, above, *_), (many, below, *_) in pairwise(points):
        if above > 1 >= below:
            share = (above - 1) / (above - below)
            at = 2 ** (math.log2(few) + share * (math.log2(many) - math.log2(few)))
            known = f"surely above at {_listed(surely)}, surely below at {_listed(never)}"
            return f"the speed-up is 1 at about {at:.1f} requests together ({known})"
    if points[-1][1] > 1:
        return f"pays up to {points[-1][0]:g} requests together, surely at {_listed(surely)}"
    return f"pays at none of {_listed([together for together, *_ in points])} requests together"


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{each:g}" for each in numbers) or "none"


def cells(row: Mapping[str, Any], title: str) -> list[str]:
    """A row of the table, in the order of ``HEADS``."""
    speed = "" if pd.isna(row["speedup"]) else f"{row['speedup']:.2f}"
    if speed and pd.notna(row["speedup_low"]):
        speed += f" [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
    rates = [f"{row[each]:.1f}" for each in (PER_USER, IN_ALL)]
    times = ["" if pd.isna(row[each]) else f"{row[each]:.3f}" for each in _TIMES]
    return [title, f"{row['batch_size']:g}", *rates, speed, *times]


def throughput(file: Path) -> str:
    """A results file's table as text; its figure is drawn beside it, as ``throughput.png``.

    Raises:
        ValueError: there is no such file, or nothing was timed.
    """
    from rich.console import Console
    from rich.table import Table

    lines = lines_of(pooled(read_results(file), Records(file)))
    console = Console(width=160)
    with console.capture() as printed:
        for group in dict.fromkeys(group for group, *_ in lines):
            table = Table(*HEADS, box=None, title=group, title_justify="left")
            found = []
            for _, title, line in (each for each in lines if each[0] == group):
                for row in line.to_dict("records"):
                    table.add_row(*cells(row, title))
                ends = line[["batch_size", "speedup", "speedup_low", "speedup_high"]].dropna()
                if line.iloc[0].decoder != "ar" and (said := crossing(_points(ends))):
                    found.append(f"{title}: {said}.")
            console.print(table, *found, sep="\n")
    draw(lines, file.parent / "throughput.png")
    return printed.get()


def _points(ends: pd.DataFrame) -> list[tuple[float, float, float, float]]:
    return [tuple(map(float, each)) for each in ends.itertuples(index=False)]  # type: ignore[misc]


def draw(lines: Sequence[tuple[str, str, pd.DataFrame]], path: Path) -> None:
    """Left: tokens/s of all over tokens/s of one. Right: the speed-up over plain decoding."""
    from matplotlib.figure import Figure

    from spec_bench.report.figures.style import save, settings

    groups = list(dict.fromkeys(group for group, *_ in lines))
    with settings():
        figure = Figure(figsize=(7.2, 3.1 * len(groups)), layout="constrained")
        panels = figure.subplots(len(groups), 2, squeeze=False)
        for group, (speeds, gains) in zip(groups, panels, strict=True):
            drawn_here = [each for each in lines if each[0] == group]
            for place, (_, title, line) in enumerate(drawn_here):
                aside = 1 + 0.03 * (place - len(drawn_here) / 2)  # of a logarithmic axis
                (drawn,) = speeds.plot(line[PER_USER], line[IN_ALL], "o-", ms=4, label=title)
                for x, y, together in zip(
                    line[PER_USER], line[IN_ALL], line.batch_size, strict=True
                ):
                    speeds.annotate(
                        f"{together:g}", (x, y), xytext=(3, 3), textcoords="offset points", size=6
                    )
                gained = line.dropna(subset=["speedup"])
                if gained.empty or gained.iloc[0].decoder == "ar":
                    continue
                away = [
                    (gained.speedup - gained.speedup_low).clip(lower=0),
                    (gained.speedup_high - gained.speedup).clip(lower=0),
                ]
                gains.errorbar(
                    gained.batch_size * aside, gained.speedup, away, fmt="o-", ms=4, capsize=2,
                    color=drawn.get_color(),
                )  # fmt: skip
            _label(speeds, gains, group)
        save(figure, path.parent, path.stem, ("png",), dpi=150)


def _label(speeds: Any, gains: Any, group: str) -> None:
    speeds.set(xlabel="tokens/s of a request", ylabel="tokens/s of all", xlim=0, ylim=0)
    speeds.set_title(group, loc="left", size=8)
    speeds.legend(fontsize=6.5)
    gains.axhline(1, color="grey", lw=0.8)
    gains.set_xscale("log", base=2)
    gains.xaxis.set_major_formatter("{x:g}")
    gains.set(xlabel="requests together", ylabel="speed-up at equal concurrency", ylim=0)
