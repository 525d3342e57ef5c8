"""A panel of a figure: its rows, and the methods that draw them on matplotlib axes, ``panel.plot``.

``panel.series(mark="line")`` draws a line for each decoder in its colour. Columns are those of
``results.csv`` and those of ``cells``, such as ``tree.depth`` and ``cell.score``; texts may name
columns in braces (``style``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spec_bench.report.claims.ask import Names, to_tuple
from spec_bench.report.claims.contrast import compute_correlation
from spec_bench.report.data.rows import compute_error_bars, get_empty_reason, to_rows
from spec_bench.report.figures.cells import LOST, SCORE, SCORE_NAME
from spec_bench.report.figures.style import (
    GREY,
    SeriesStyle,
    assign_markers,
    assign_styles,
    fill_template,
    has_named_values,
)
from spec_bench.settings.fields import describe_unknown_setting
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.columns import ENDS, find_column, select_must_match_columns

_MARKS = ("line", "point", "front")
_ASKED = ["pair", "task"]  # must be equal in printed and measured cells
_SAMPLING = ["temperature", "top_k", "top_p"]  # must be equal, too, if printed
_OF_A_LINE = ("draft",)  # cells of a line have equal values of these and of the run settings
_STYLE = {
    "markersize": 4.0,
    "linewidth": 1.2,
    "elinewidth": 0.6,
    "capsize": 0.0,
}
_MANY = 12  # if a panel has more texts beside marks, they are smaller so as not to overlap
_SIDES = [(side, lift) for lift in (3, -3, 9, -9) for side in (1, -1)]


class Axis(NamedTuple):
    """The look of a column on an axis."""

    label: str | None = None  # by default the column's title, with its unit if it is a rate
    log: bool = False  # base 2, with a tick at each value
    ticks: tuple[float, ...] = ()  # empty: matplotlib's choice
    low: float | None = None  # lower limit
    hint: str = ""  # how to measure the column, for panels without numbers


class DrawnSeries(NamedTuple):
    """Rows drawn as one series, in the order of its line."""

    rows: pd.DataFrame
    look: SeriesStyle
    label: str  # label in the legend; "": not listed
    shape: str  # its marker's label in the legend
    mark: str
    printed: bool
    handle: dict[str, Any]  # its look in the legend
    unreadable_x: Sequence[float] = ()  # values of x at which a printed number could not be read


@dataclass(frozen=True)
class SeriesOptions:
    """Which rows of a panel are drawn as series, and how."""

    # column -> value, list of values or "max": which of the panel's rows are drawn
    keep: Mapping[str, Any] = field(default_factory=dict)
    # whether to draw the paper's numbers, for the pairs, tasks and sampling measured in the panel
    printed: bool = False
    # column; only the row with its largest value is drawn of a series' rows at one x. "y": y
    best: str = ""
    hue: Names = "decoder"  # columns; each combination of their values is a series
    marker: str = ""  # column; each of its values has a marker. By default each series has one
    mark: str = "point"  # or "line", or "front": the Pareto front as steps
    order: str = ""  # column that orders the points of a line, by default x
    dodge: float | None = None  # distance between series along x; a factor on a logarithmic axis
    label: str | None = None  # template of a series' label in the legend; "": not listed
    shape: str = ""  # template of a marker's label in the legend, with ``marker``
    # value of hue -> colour, marker or both: "blue", " x", "blue o"; "" is for all
    looks: Mapping[str, str] = field(default_factory=dict)
    # colours from dark to light by the value of hue, up to this share of the colour map
    shade: float | None = None
    dashed: bool | Collection[str] = False  # all lines, or those of some values of hue
    faint: float | None = None  # opacity of the error bars
    write: str = ""  # template of a text beside each mark; omitted if its column has no value
    caption: str = ""  # text of the note if something is drawn

    def make_legend_look(self, look: SeriesStyle, has_markers: bool) -> dict[str, Any]:
        """Returns the matplotlib properties of a series' entry in the legend."""
        handle: dict[str, Any] = {"color": GREY if self.printed else look.colour}
        if self.marker or has_markers:
            shape = {"marker": "o"} if self.marker else {"marker": look.marker, "markersize": 4}
            handle |= shape
        if self.printed:
            handle["markerfacecolor"] = "none"
        return handle


@dataclass
class Panel:
    """One panel: its rows, and the series drawn from them."""

    rows: pd.DataFrame  # rows of the panel, drawn or not
    file_rows: pd.DataFrame  # rows of all panels of the file
    x: str
    y: str
    title: str
    axes: Mapping[str, Axis]
    printed: pd.DataFrame | None  # the paper's numbers, to be compared with the rows; None: none
    keep: Mapping[str, Any]  # which of its rows are drawn
    empty: str = ""  # text if nothing is drawn; by default the reason why it was not measured
    plot: Any = None  # matplotlib axes
    drawn: list[DrawnSeries] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)  # texts of the note
    _texts: list[tuple[int, float, float, str]] = field(default_factory=list)
    _formatted: bool = False

    @cached_property
    def drawable_rows(self) -> pd.DataFrame:
        """The kept rows that have values of x and y."""
        if not {self.x, self.y} <= set(self.rows):
            return self.rows[:0]
        return filter_rows(self.rows, self.keep).dropna(subset=[self.x, self.y])

    def list_values_in_file(self, column: str) -> list[Any]:
        """Lists a column's distinct values in all panels of the file, numbers ascending."""
        values = self.file_rows.dropna(subset=[self.x, self.y])[column].unique()
        return list(values) if any(isinstance(value, str) for value in values) else sorted(values)

    def series(self, **options: Any) -> list[DrawnSeries]:
        """Draws the rows as series, one for each value of ``hue``; returns the series.

        Args:
            options: fields of ``SeriesOptions``; and ``markersize``, ``linewidth``, ``elinewidth``,
                ``capsize`` and ``alpha`` of matplotlib's ``errorbar``: ``markersize=0`` draws
                lines alone.
        """
        chosen = SeriesOptions(**pop_named(options, SeriesOptions.__dataclass_fields__))
        if chosen.mark not in _MARKS:
            raise UsageError(f"mark must be one of {', '.join(_MARKS)}, got {chosen.mark!r}")
        for word in {*options} - {*_STYLE, "alpha"}:
            raise UsageError(describe_unknown_setting(f"series.{word}", word, [*_STYLE, "alpha"]))
        style = {**_STYLE, **options, "markerfacecolor": "none" if chosen.printed else None}
        result = self._make_series(chosen, bool(style["markersize"]))
        result.sort(key=lambda series: series.look.series_index)
        for drawn_series in result:
            self._draw_series(drawn_series, style, chosen)
            if chosen.write:
                self._collect_mark_texts(drawn_series.rows, chosen.write)
        self.captions += [chosen.caption] * bool(result)
        self.drawn += result
        return result

    def _make_series(self, chosen: SeriesOptions, has_markers: bool) -> list[DrawnSeries]:
        """Splits the chosen rows into series, each with its look; no series if column x or y is
        missing.
        """
        rows = self._select_printed_rows() if chosen.printed else self.rows
        x, y, marker = self.x, self.y, chosen.marker
        if not {x, y} <= set(rows):
            return []
        filters = {**self.keep, **chosen.keep}
        hues = [name for name in to_tuple(chosen.hue) if name in self.file_rows]
        rows = filter_rows(rows, filters)
        lost_rows = rows[rows[LOST] & rows[y].isna()] if LOST in rows else rows[:0]
        rows = _select_best_rows(rows, [*hues, x], x, y, chosen.best)
        file_rows = filter_rows(self.file_rows, filters)
        styles = assign_styles(file_rows, hues, filters, chosen.looks, chosen.shade, chosen.dashed)
        by_marker = assign_markers(self.file_rows[marker]) if marker else {}
        label = chosen.label
        if label is None:
            label = " ".join(f"{{{name}}}" for name in to_tuple(chosen.hue)) + "{marks}"
        keys = [*hues, *([marker] if marker else [])]
        parts = rows.groupby(keys, sort=False, dropna=False) if keys else [((), rows)]
        result = []
        for _, part in parts if len(rows) else ():
            look = styles[tuple(part[name].iloc[0] for name in hues)]
            if marker:
                look = look._replace(marker=by_marker[part[marker].iloc[0]])
            label_rows = filter_rows(file_rows, {name: [*part[name].unique()] for name in hues})
            label_rows = part if label_rows.empty else label_rows
            text = _format_series_label(label, part, label_rows, x, y)
            text = text if len(hues) == len(to_tuple(chosen.hue)) else ""
            lost_places: Sequence[float] = ()
            if len(lost_rows):
                is_of_part = (lost_rows[hues] == part[hues].iloc[0]).all(axis=1)
                lost_places = tuple(lost_rows[is_of_part][x].dropna().unique())
            if chosen.mark == "line":
                part = part.sort_values(chosen.order or x, kind="stable")
            elif chosen.mark == "front":
                part = select_pareto_front(part, x, y)
            handle = chosen.make_legend_look(look, has_markers)
            shape = fill_template(chosen.shape, part)
            result.append(
                DrawnSeries(
                    part, look, text, shape, chosen.mark, chosen.printed, handle, lost_places
                )
            )
        return result

    def set_lower_limits(self) -> None:
        """Sets the lower limits of the axes that the looks of x and y define."""
        looks = [self.axes.get(column) for column in (self.x, self.y)]
        low = [None if look is None else look.low for look in looks]
        if self.drawn and low != [None, None]:
            self.plot.set(xlim=(low[0], None), ylim=(low[1], None))

    def _select_printed_rows(self) -> pd.DataFrame:
        """Selects the paper's cells of the pairs, tasks and sampling that were measured in this
        panel.
        """
        printed_rows = self.printed
        if printed_rows is None or self.x not in printed_rows:
            return pd.DataFrame()
        asked_rows = self.rows[[*_ASKED, *_SAMPLING]].drop_duplicates()
        matching_rows = printed_rows.reset_index().merge(
            asked_rows,
            on=_ASKED,
            suffixes=("", "_here"),
        )
        for name in _SAMPLING:  # NaN if the paper prints none
            matching_rows = matching_rows[
                matching_rows[name].isna() | (matching_rows[name] == matching_rows[f"{name}_here"])
            ]
        return printed_rows.loc[matching_rows["index"].unique()].dropna(subset=[self.x])

    def _collect_mark_texts(self, rows: pd.DataFrame, template: str) -> None:
        """Fills in a template for each row and keeps the texts for ``write_mark_texts``. Skips rows
        without a value in a column that the template names.
        """
        for index, row in rows.iterrows():
            text = fill_template(template, rows.loc[[index]])
            if text and has_named_values(template, row):
                self._texts.append((int(index), float(row[self.x]), float(row[self.y]), text))

    def _draw_series(
        self,
        series: DrawnSeries,
        style: dict[str, Any],
        chosen: SeriesOptions,
    ) -> None:
        """Draws a series: marks with their intervals, lines, or a Pareto front."""
        look = series.look
        dodge = chosen.dodge
        if series.mark == "front":
            # Between two points of the front the worse of their values holds.
            steps = "pre" if _is_better_high(self.x) else "post"
            line_style = {"color": look.colour, "linewidth": style["linewidth"]}
            self.plot.step(series.rows[self.x], series.rows[self.y], where=steps, **line_style)
            return
        places = self._x_categories

        def place_values(values: pd.Series) -> pd.Series:
            positions = values.map(lambda value: places.index(str(value))) if places else values
            if dodge is None:
                return positions
            return (
                positions * dodge**look.offset
                if self._get_axis(self.x).log
                else positions + dodge * look.offset
            )

        line = "" if series.mark == "point" else "--" if look.dashed else "-"
        label: str | None = series.label or None
        for rows in (
            _split_lines(series.rows, (self.x, chosen.order or self.x)) if line else [series.rows]
        ):
            bars = self.plot.errorbar(
                place_values(rows[self.x]), rows[self.y],
                xerr=None if places else _compute_bar_lengths(rows, self.x),
                yerr=_compute_bar_lengths(rows, self.y),
                fmt=f"{look.marker if style['markersize'] else ''}{line}",
                color=look.colour, label=label, **style,
            )  # fmt: skip
            label = None
            for error_bar in bars[2] if chosen.faint is not None else ():
                error_bar.set_alpha(chosen.faint)
        if series.unreadable_x:
            self._draw_unreadable_points(series, style["markersize"] or 4, place_values)

    def _draw_unreadable_points(
        self,
        series: DrawnSeries,
        size: float,
        place_values: Callable[[pd.Series], pd.Series],
    ) -> None:
        """Marks the x at which a printed number could not be read: by a hollow marker if another
        one could be, else by a cross at the bottom. ``place_values`` gives the places of x.
        """
        marks = {
            "color": series.look.colour,
            "markerfacecolor": "white",
            "zorder": 4,
            "markersize": size,
        }
        best = series.rows[series.rows[self.x].isin(series.unreadable_x)]
        self.plot.plot(place_values(best[self.x]), best[self.y], series.look.marker, **marks)
        lost = [value for value in series.unreadable_x if value not in set(best[self.x])]
        bottom = {"transform": self.plot.get_xaxis_transform(), **marks}
        self.plot.plot(place_values(pd.Series(lost)), [0.05] * len(lost), "x", **bottom)

    @cached_property
    def _x_categories(self) -> list[str]:
        """Categories along an x that is text, the same in all panels; empty if x is a number."""
        values = self.list_values_in_file(self.x)
        return values if any(isinstance(value, str) for value in values) else []

    def format_scales_and_ticks(self) -> None:
        """Sets scales and ticks once. Must follow the series, because ticks widen their limits."""
        if self._formatted:
            return
        self._formatted = True
        for side, column in (("x", self.x), ("y", self.y)):
            axis = self._get_axis(column)
            ticks = getattr(self.plot, f"set_{side}ticks")
            if axis.log:
                values = self.list_values_in_file(column)
                getattr(self.plot, f"set_{side}scale")("log", base=2)
                ticks(values, [f"{value:g}" for value in values])
                self.plot.minorticks_off()
            if axis.ticks:
                ticks(axis.ticks)
        if places := self._x_categories:
            self.plot.set_xticks(range(len(places)), places)

    def _get_axis(self, column: str) -> Axis:
        return self.axes.get(column, Axis())

    def format_axis_label(self, column: str) -> str:
        """Returns the label of a column on an axis; ``cell.score`` gets the label of the score it
        holds.
        """
        names = self.rows[SCORE_NAME].dropna().unique() if SCORE_NAME in self.rows else []
        real = str(names[0]) if column == SCORE and len(names) == 1 else column
        label = (self.axes.get(real) or self._get_axis(column)).label
        column_info = find_column(real)
        title = column_info.title if column_info else real.rpartition(".")[2]
        if column_info and "/" in column_info.unit and column_info.unit not in title:
            title = f"{title} ({column_info.unit})"
        return title if label is None else label

    @property
    def empty_reason(self) -> str:
        """Text that explains why the panel is empty."""
        has_y = self.y in self.rows and self.rows[self.y].notna().any()
        missing = self.x if has_y else self.y
        reasons = (get_empty_reason(row, missing) for row in to_rows(self.rows))
        cause = next(filter(None, reasons), "no value")
        hint = self._get_axis(missing).hint
        return self.empty or f"{self.format_axis_label(missing)} not measured: {cause}{hint}"

    def write_mark_texts(self) -> None:
        """Writes each text beside its mark, on the side where most room is left.

        Room is the distance to marks and other texts, in units of the text's size. Places beyond
        the panel have no room.
        """
        if not self._texts:
            return
        marks = sorted(self._texts)
        plot = self.plot
        size = 5.5 if len(marks) > _MANY else 6.5
        plot.figure.draw_without_rendering()  # lays out the axes, so that positions are known
        places = plot.transData.transform([(x, y) for _, x, y, _ in marks]) * 72 / plot.figure.dpi
        occupied = [(float(x), float(y)) for x, y in places]
        left_edge, right_edge = (
            float(edge) * 72 / plot.figure.dpi for edge in (plot.bbox.x0, plot.bbox.x1)
        )
        for (_, *anchor, text), (x, y) in zip(marks, places, strict=True):
            width = 0.6 * size * len(text)
            best = (-inf, (0.0, 0.0), 1, 0)
            for side, lift in _SIDES:
                centre = x + side * (5 + width / 2), y + lift
                gaps = [
                    max(abs(centre[0] - a) / width, abs(centre[1] - b) / size) for a, b in occupied
                ]
                inside = left_edge <= centre[0] - width / 2 <= centre[0] + width / 2 <= right_edge
                room = min(0.8, *gaps) if inside else -1.0  # more room than this is no better
                if room > best[0]:
                    best = (room, centre, side, lift)
            _, centre, side, lift = best
            occupied.append(centre)
            plot.annotate(
                text, anchor, textcoords="offset points", xytext=(side * 5, lift),
                ha="left" if side > 0 else "right", va="center", fontsize=size,
            )  # fmt: skip


def pop_named(options: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Removes the options with these names from a dict and returns them."""
    return {name: options.pop(name) for name in [*options] if name in names}


def filter_rows(rows: pd.DataFrame, keep: Mapping[str, Any]) -> pd.DataFrame:
    """Selects the rows with the given values, column by column; ``"max"`` selects the largest
    value. If a column is missing, ``"max"`` keeps all rows, any other value none.
    """
    for name, choice in keep.items():
        if choice == "max":
            rows = rows[rows[name] == rows[name].max()] if name in rows else rows
        elif name not in rows:
            return rows.iloc[:0]
        else:
            is_kept = rows[name].isin(choice if isinstance(choice, list) else [choice])
            rows = rows if is_kept.all() else rows[is_kept]
    return rows


def _select_best_rows(
    rows: pd.DataFrame,
    keys: Sequence[str],
    x: str,
    y: str,
    best: str,
) -> pd.DataFrame:
    """Drops rows without numbers. With ``best``, keeps of the rows that agree in ``keys`` the one
    with the largest value of that column ("y": of y).
    """
    judge_column = y if best in ("y", "") else best
    rows = rows.dropna(subset=[x, judge_column])
    if best:
        rows = rows.loc[rows.groupby([*keys], sort=False)[judge_column].idxmax()]
        rows = rows.dropna(subset=[y])
    return rows


def _split_lines(rows: pd.DataFrame, along: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Splits a series into lines; the cells of a line differ only in the columns ``along``."""
    setting_names = [*(column.name for column in select_must_match_columns(rows)), *_OF_A_LINE]
    other_names = [name for name in setting_names if name in rows and name not in along]
    names = [name for name in other_names if rows[name].nunique(dropna=False) > 1]
    for _, part in rows.groupby(names, sort=False, dropna=False) if names else [((), rows)]:
        yield part


def _compute_bar_lengths(rows: pd.DataFrame, column: str) -> NDArray[np.float64] | None:
    """Computes the lengths of error bars; None if no row has an interval."""
    names = [column, *(f"{column}{end}" for end in ENDS)]
    if names[1] not in rows or rows[names[1]].isna().all():
        return None
    return compute_error_bars(rows.reindex(columns=names).itertuples(index=False, name=None))


def _format_series_label(
    template: str,
    part: pd.DataFrame,
    label_rows: pd.DataFrame,
    x: str,
    y: str,
) -> str:
    """Formats a series' label in the legend, from all of its rows in the file, in any panel."""
    r = compute_correlation(part[x], part[y]) if "{correlation}" in template else None
    extras = {"count": len(part), "correlation": "" if r is None else f", r = {r:.3f}"}
    return fill_template(template, label_rows, **extras)


def _is_better_high(column: str) -> bool:
    column_info = find_column(column)
    return column_info is None or column_info.better != "down"


def select_pareto_front(rows: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Selects the Pareto front, x ascending: the rows that no other row beats by being as good in
    both columns and better in one. Of equal rows the first is selected.
    """
    worth = rows[[x, y]] * [1 if _is_better_high(name) else -1 for name in (x, y)]
    worth = worth.sort_values([x, y], ascending=False, kind="stable")
    best = worth[y].cummax().shift(fill_value=-inf)
    return rows.loc[worth.index[worth[y] > best]].sort_values(x)


def panels(*_: object, **__: object) -> NoReturn:
    """Raises UsageError: ``draw_panels`` has replaced this function."""
    raise UsageError("panels() is now draw_panels() of figures.grid: experiments/README.md")
