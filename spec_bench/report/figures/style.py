"""The look of figures: sizes, colours and markers of series, templates of texts, and writing files.

Templates name columns in braces: ``{task}, t = {tree.threshold:g}``. A column is written if all
rows have one value of it, and is empty otherwise; its name with an s (``{tasks}``) lists all
values. ``{paths:path}`` counts: 1 path, 2 paths. ``{marks}`` are the marks of rows that are not
exact.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from spec_bench.system.files import atomic_replace
from spec_bench.vocabulary.decoders import COLOURS, MARKERS, PALETTE, find_decoder
from spec_bench.vocabulary.names import MARKS, get_decoder_or_task_title
from spec_bench.vocabulary.numbers import format_count

FORMATS = ("png", "pdf")
TWO_COLUMNS_INCHES = 7.2  # the width of a page of two columns
GREY = "grey"
_DPI = 200
_NAMED = re.compile(r"\{([^{}:]+):?([^{}]*)\}")
_COLOURS = {str(name): colour.light for name, colour in COLOURS.items()}
_SETTINGS = Path(__file__).with_name("figures.mplstyle")
_CYCLE = {"axes.prop_cycle": cycler(color=[colour.light for colour in PALETTE])}


class SeriesStyle(NamedTuple):
    """Colour, marker and line of a series."""

    series_index: int  # its index among the values of hue
    offset: float  # its index minus that of the middle series
    colour: Any
    marker: str
    dashed: bool


def assign_styles(
    rows: pd.DataFrame,
    hue: Sequence[str],
    keep: Mapping[str, Any],
    looks: Mapping[str, str],
    shade: float | None,
    dashed: bool | Collection[str],
) -> dict[tuple[Any, ...], SeriesStyle]:
    """Assigns a style to each value of ``hue``, the same in all panels of a file. Values that
    ``keep`` or ``looks`` list come first, in that order; without such a list numbers are ascending,
    and other values are in order of occurrence. A decoder has the same colour in every figure, and
    the same marker if all its trees are one series.
    """
    values = (
        [tuple(row_values) for row_values in rows[list(hue)].drop_duplicates().to_numpy()]
        if hue
        else [()]
    )
    if len(hue) == 1:
        filter_value = keep.get(hue[0])
        first_values = [
            (row_values,)
            for row_values in (filter_value if isinstance(filter_value, list) else looks)
            if row_values
        ]
        if not first_values and pd.api.types.is_numeric_dtype(rows[hue[0]]):
            values = sorted(values)
        values = list(dict.fromkeys([*first_values, *values]))
    styles = {}
    for index, value in enumerate(values):
        name = str(value[0]) if len(value) == 1 else ""
        decoder_style = find_decoder(str(value[hue.index("decoder")])) if "decoder" in hue else None
        colour: Any = (
            decoder_style.colour if decoder_style else PALETTE[index % len(PALETTE)]
        ).light
        marker: str = (
            decoder_style.marker if decoder_style and name else MARKERS[index % len(MARKERS)]
        )
        if shade is not None and len(values) > 2:
            colour = matplotlib.colormaps["viridis"](shade * index / (len(values) - 1))
        own_colour, _, own_marker = looks.get(name, looks.get("", "")).partition(" ")
        colour = _COLOURS.get(own_colour, own_colour) or colour
        aside = index - (len(values) - 1) / 2
        is_dashed = dashed if isinstance(dashed, bool) else name in dashed
        styles[value] = SeriesStyle(index, aside, colour, own_marker or marker, is_dashed)
    return styles


def assign_markers(values: pd.Series) -> dict[Any, str]:
    """Assigns a marker to each value of a column."""
    sorted_values = sorted(values.dropna().unique())
    return {value: MARKERS[i % len(MARKERS)] for i, value in enumerate(sorted_values)}


class ReportFigure(Figure):
    """A matplotlib figure that pyplot does not manage, and that notebooks display."""

    rows: pd.DataFrame | None = None  # the rows that it shows
    setting = ""  # run settings that the figure's other files do not have
    missing: tuple[str, ...] = ()  # what was not measured, and why
    grid: Sequence[Sequence[Any]] = ()  # its panels, row by row, with what they show

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.savefig(picture)
        return picture.getvalue()


def figure_settings_applied() -> AbstractContextManager[None]:
    """Returns a context with the figures' matplotlib settings. Figures are drawn and saved within
    it, because ticks are made when saving.
    """
    return matplotlib.rc_context(_CYCLE, _SETTINGS)


def save_figure(
    figure: Any,
    folder: Path,
    name: str,
    formats: Sequence[str],
    dpi: int = _DPI,
) -> list[Path]:
    """Writes a figure as ``name`` with the suffix of each format; returns the paths. The same
    figure gives the same bytes.
    """
    figure.set_dpi(dpi)
    FigureCanvasAgg(figure)  # the same canvas for layout and drawing: each text is measured once
    notes = {note: note.get_text() for note in figure.texts if note.get_wrap()}
    for note, text in notes.items():
        note.set(text=wrap_note(figure, note, text), wrap=False)
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)  # once, because every format would lay out and draw again
        figure.set_layout_engine(None)
    paths = [folder / f"{name}.{suffix}" for suffix in formats]
    for path in paths:
        is_pdf = path.suffix == ".pdf"  # a PNG has no date
        metadata = {"CreationDate": None} if is_pdf else None
        with atomic_replace(path) as partial:
            figure.savefig(partial, format=path.suffix[1:], dpi=dpi, metadata=metadata)
    for note, text in notes.items():
        note.set(text=text, wrap=True)
    return paths


def wrap_note(figure: Any, note: Any, text: str) -> str:
    """Wraps a text into lines like matplotlib, but faster: matplotlib measures each word, for every
    format.
    """
    room = figure.bbox.width * (1 - note.get_position()[0])
    renderer = figure.canvas.get_renderer()

    def measure(count: int) -> float:
        line = " ".join(words[:count])
        return ceil(
            renderer.get_text_width_height_descent(line, note.get_fontproperties(), False)[0]
        )

    lines = []
    for paragraph in text.split("\n"):
        words = paragraph.split(" ")
        while words:
            count = bisect_right(range(1, len(words) + 1), room, key=measure) or 1
            lines.append(" ".join(words[:count]))
            words = words[count:]
    return "\n".join(lines)


def fill_template(text: str, rows: pd.DataFrame, **extras: object) -> str:
    """Fills in the names in braces of a text, from columns of the rows or from ``extras``."""
    values_known = {"marks": format_inexact_marks(rows), **extras}

    def format_shown(value: Any) -> Any:
        return get_decoder_or_task_title(value) if isinstance(value, str) else value

    def replace_name(match: re.Match[str]) -> str:
        name, form = match.groups()
        singular = name.removesuffix("s")
        values = next((list(rows[n].dropna().unique()) for n in (name, singular) if n in rows), [])
        value: Any = ", ".join(str(format_shown(item)) for item in values)
        if name in values_known:
            value = values_known[name]
        elif name in rows:
            bare = len(values) != 1 or (name == "spec" and values[0] == "-")
            value = "" if bare else format_shown(values[0])
        if len(form) > 1 and form.isalpha() and value != "":
            return format_count(value, form)
        return "" if value == "" else f"{value:{form}}"

    return re.sub(" {2,}", " ", _NAMED.sub(replace_name, text)).strip(" ")


def has_named_values(text: str, row: Mapping[str, Any]) -> bool:
    """Returns whether a row has a value in each of its columns that a text names."""
    return not any(name in row and pd.isna(row[name]) for name, _ in _NAMED.findall(text))


def format_inexact_marks(rows: pd.DataFrame) -> str:
    """Formats the marks of rows that are not exact, for a title; decoders of another engine are
    named.
    """
    if "lossless" not in rows:
        return ""
    texts_by_mark = {mark: text for mark, text in MARKS.items() if (rows.lossless == mark).any()}
    elsewhere = rows.lossless == "unaudited"
    if elsewhere.any() and not elsewhere[rows.decoder != "ar"].all():
        decoders = dict.fromkeys(map(get_decoder_or_task_title, rows.decoder[elsewhere]))
        texts_by_mark["unaudited"] = f"{', '.join(decoders)}: {MARKS['unaudited']}"
    return f" ({', '.join(texts_by_mark.values())})" if texts_by_mark else ""
