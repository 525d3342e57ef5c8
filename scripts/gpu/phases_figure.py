"""Draws where a recorded iteration's time goes: ``python scripts/gpu/phases_figure.py DIR``.

DIR has the tables of ``bench.py first``; the picture is DIR/gpu-phases.png. A bar is an iteration
of a decoder: what its kernels take in each phase, and what lies between them. Beside the bars stand
plain decoding in torch alone (``reference.py``), and the time in which the measured bandwidth
(``probe.py``) streams the target's weights. ``--before DIR`` draws an earlier measurement's bars
above. It needs the environment, and no GPU.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {
    "draft": "#0072B2",
    "grow and tell": "#56B4E9",
    "target": "#E69F00",
    "walk": "#009E73",
    "keep": "#CC79A7",
    "between kernels": "#DDDDDD",
}
REFERENCES = {"7b": "llama2_7b"}  # phases' names of pairs in reference.py's table, where others
BAR = ["cell", "compile", "measured"]  # what tells the bars of a panel apart
PANEL = ["pair", "dtype"]


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """Reads a table of a folder; an empty one where it is not there."""
    file = folder / f"{name}.csv"
    return pd.read_csv(file) if file.is_file() else pd.DataFrame()


def sum_phases(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the milliseconds of each phase of a panel's bars, and what lies between kernels;
    those of one decoder stand together, in the order of measuring.
    """
    wide = rows.pivot_table(index=BAR, columns="phase", values="ms", sort=False)
    wide = wide.reindex(columns=list(COLOURS)[:-1]).fillna(0.0)
    whole = rows.groupby(BAR, sort=False).replay_ms.first()
    wide["between kernels"] = (whole - wide.sum(axis=1)).clip(lower=0.0)
    order = list(dict.fromkeys(bar[:2] for bar in wide.index))
    return wide.loc[sorted(wide.index, key=lambda bar: order.index(bar[:2]))]


def find_limits(folder: Path, pair: str, dtype: str) -> dict[str, float]:
    """Returns plain decoding's milliseconds in torch alone, by how it ran, and the memory's."""
    reference = read_table(folder, "gpu-reference")
    if reference.empty:
        return {}
    sizes = reference.sizes == REFERENCES.get(pair, pair)
    rows = reference[sizes & (reference.dtype == dtype) & (reference.tokens == 1)]
    limits = {f"torch alone, {row.compile}": float(row.ms) for row in rows.itertuples()}
    probe = read_table(folder, "gpu-probe")
    if len(rows) and len(probe):
        bandwidth = probe.set_index("what").value.get("bandwidth of a sum, GB/s")
        streamed = float((rows.weights_gb_s * rows.ms).iloc[0])
        limits["the memory"] = streamed / float(bandwidth)
    return limits


def draw_panel(axes: Axes, bars: pd.DataFrame, limits: dict[str, float]) -> None:
    """Draws bars from the top down, and limits as vertical lines."""
    names = [" ".join(filter(None, map(str, name))) for name in bars.index]
    left = pd.Series(0.0, index=bars.index)
    for phase, colour in COLOURS.items():
        axes.barh(names, bars[phase], left=left.to_list(), color=colour, label=phase)
        left += bars[phase]
    for (name, at), style in zip(limits.items(), (":", "--", "-.", "-"), strict=False):
        axes.axvline(at, color="black", linestyle=style, linewidth=1, label=name)
    axes.invert_yaxis()
    axes.margins(x=0.02)
    axes.set_xlabel("ms of an iteration")


def draw(folder: Path, before: Path | None) -> Figure:
    """Draws a panel for each pair and dtype. Raises SystemExit: nothing was measured."""
    tables = [(folder, "")] if before is None else [(before, "before"), (folder, "after")]
    rows = [read_table(each, "gpu-phases").assign(measured=when) for each, when in tables]
    table = pd.concat(rows)
    if "phase" not in table:
        raise SystemExit(f"{folder} has no gpu-phases.csv: scripts/gpu/phases.py --output {folder}")
    panels = list(table.groupby(PANEL, sort=False))
    figure = Figure(figsize=(9, 1 + 0.28 * len(table.groupby([*PANEL, *BAR]))))
    figure.set_layout_engine("constrained")
    bars = [sum_phases(part) for _, part in panels]
    heights = [len(part) + 3 for part in bars]
    grid = figure.subplots(len(panels), height_ratios=heights, squeeze=False).flat
    for axes, ((pair, dtype), part), bar in zip(grid, panels, bars, strict=True):
        draw_panel(axes, bar, find_limits(folder, pair, dtype))
        axes.set_title(f"{pair}, {dtype}, {part.device.iloc[-1]}", fontsize=10)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes DIR/gpu-phases.png."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="with the tables")
    parser.add_argument("--before", type=Path, metavar="DIR", help="with an earlier gpu-phases.csv")
    options = parser.parse_args(arguments)
    file = options.folder / "gpu-phases.png"
    draw(options.folder, options.before).savefig(file, dpi=130, metadata={"Software": None})
    print(file)


if __name__ == "__main__":
    sys.exit(main())
