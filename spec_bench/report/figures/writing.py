"""Texts at the marks of a panel: in them, below them, beside them, or of all above the panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spec_bench.report.figures.sheet import Series
from spec_bench.report.figures.texts import fill, known

_MANY = 12  # more texts than this beside marks of one panel would hide each other: smaller ones


class _Mark(NamedTuple):
    """A mark's row in the file, its place, and its text."""

    row: int
    x: float
    y: float
    text: str


def write_texts(plot: Any, series: Sequence[Series]) -> None:
    """Writes the texts of a panel's layers at their marks."""
    for each in series:
        layer = each.layer
        if layer.write and layer.at == "above":
            text = "front: " + ", ".join(mark.text for mark in _marks(each))
            place = {"xy": (0.01, 1.0), "xycoords": "axes fraction"}
            plot.annotate(text, **place, fontsize=5.5, color=each.look.colour)
        elif layer.write and layer.at == "inside":
            look = {"fontsize": 5.5, "color": "white", "weight": "bold", "zorder": 5}
            middle = {"ha": "center", "va": "center_baseline"}
            for mark in _marks(each):
                plot.annotate(mark.text, (mark.x, mark.y), **middle, **look)
        elif layer.write and layer.at == "below":
            below = {"xytext": (3, -9), "textcoords": "offset points", "fontsize": 6}
            for mark in _marks(each):
                plot.annotate(mark.text, (mark.x, mark.y), **below)
    beside = [each for each in series if each.layer.write and each.layer.at == "beside"]
    if marks := sorted(mark for each in beside for mark in _marks(each)):
        _write_beside(plot, marks)


def _marks(series: Series) -> list[_Mark]:
    """A series' marks with their places and texts."""
    labels = []
    for index, (_, row) in enumerate(series.rows.iterrows()):
        if known(series.layer.write, row):
            text = fill(series.layer.write, series.rows.iloc[[index]])
            place = float(row[series.x]), float(row[series.y])
            labels.append(_Mark(int(series.rows.index[index]), *place, text))
    return labels


def _write_beside(plot: Any, marks: Sequence[_Mark]) -> None:
    """Writes each text beside its mark, on the side where most room is left."""
    size = 5.5 if len(marks) > _MANY else 6.5
    plot.figure.draw_without_rendering()  # lays out the axes, so that places on paper are known
    places = plot.transData.transform([(mark.x, mark.y) for mark in marks]) * 72 / plot.figure.dpi
    taken = [(float(x), float(y)) for x, y in places]
    edges = [float(edge) * 72 / plot.figure.dpi for edge in (plot.bbox.x0, plot.bbox.x1)]
    for mark, (x, y) in zip(marks, places, strict=True):
        width = 0.6 * size * len(mark.text)
        side, lift = max(_SIDES, key=_room((x, y), (width, size), taken, edges))
        taken.append(_centre((x, y), width, side, lift))
        plot.annotate(
            mark.text,
            (mark.x, mark.y),
            textcoords="offset points",
            xytext=(side * 5, lift),
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=size,
        )


_SIDES = [(side, lift) for lift in (3, -3, 9, -9) for side in (1, -1)]


def _centre(place: tuple[float, float], width: float, side: int, lift: int) -> tuple[float, float]:
    """The middle of a text beside a place, in points."""
    return place[0] + side * (5 + width / 2), place[1] + lift


def _room(
    place: tuple[float, float],
    size: tuple[float, float],
    taken: Sequence[tuple[float, float]],
    edges: Sequence[float],
) -> Callable[[tuple[int, int]], float]:
    """The room that a side and lift leave to taken places, in sizes of the text.

    Beyond the left and right edge of the panel there is none.
    """

    def room(choice: tuple[int, int]) -> float:
        x, y = _centre(place, size[0], *choice)
        if not edges[0] <= x - size[0] / 2 <= x + size[0] / 2 <= edges[1]:
            return -1.0
        gaps = (max(abs(x - a) / size[0], abs(y - b) / size[1]) for a, b in taken)
        return min(0.8, *gaps)  # more room than this is no better

    return room
