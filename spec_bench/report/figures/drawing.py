"""The description of a figure in a paper's data file: ``drawing:`` of a figure in ``paper.yaml``.

A figure is a grid of panels, a panel has layers, a layer is one way of drawing some rows. Keys of
the figure hold for its panels and keys of a panel for its layers, unless these override them; a
layer's ``keep`` adds to that of its panel. So the smallest figure is
``{x: nodes_per_call, y: block_efficiency, across: task}``, one colour per decoder. Columns are
those of ``results.csv`` and those of ``derived``, such as ``tree.depth`` and ``cell.score``. Texts
may name columns in braces (``texts``). Knows nothing about measured numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from spec_bench.report.papers.code import form_of
from spec_bench.report.papers.paper import Figure, load_paper
from spec_bench.settings.validation import check
from spec_bench.vocabulary.columns import COLUMNS

Names = tuple[str, ...]


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axis(_Described):
    """The look of a column on an axis.

    Attributes:
        label: beside the axis; by default the column's title, with its unit if it is a rate.
        log: whether the scale is logarithmic (base 2), with a tick at each value.
        ticks: their places; none: matplotlib's choice.
        low: lower limit.
        room: the marks alone set the limits, with this much of their range on either side; bars
            may leave the panel.
        better: the direction in which a Pareto front looks; by default the column's.
        turned: whether the ticks' texts are turned, so that long ones fit.
        hint: how to measure the column; shown in a panel without numbers.
    """

    label: str | None = None
    log: bool = False
    ticks: tuple[float, ...] = ()
    low: float | None = None
    room: float | None = None
    better: Literal["up", "down"] | None = None
    turned: bool = False
    hint: str = ""


class Layer(_Described):
    """One way of drawing some rows in a panel; every value of ``hue`` is a series.

    Attributes:
        x: column.
        y: column.
        ends: columns of the lower and upper end of y's bar; by default ``Y_low`` and ``Y_high``.
        keep: column -> the value, or the values, of the rows to draw; ``max``: the highest.
        printed: draws the paper's printed numbers instead of measured ones, where the panel has
            rows of the same pair, task and sampling.
        best: of a series' rows at one x only the one with the highest value of this column is
            drawn; ``y``: of the column on the axis.
        over: y is divided by that of this decoder, which is taken as known without error.
        hue: the columns whose values get a colour each.
        marker: the column whose values get a marker each; by default that of the colours.
        mark: a line through the marks, marks alone, or the Pareto front of the rows as steps.
        order: the column along which a line goes, by default x.
        dodge: series stand this far apart, so that bars do not hide each other; a factor where the
            axis is logarithmic.
        label: of a colour in the legend; "": it is not listed.
        shape: of a marker in the legend, where ``marker`` is given.
        names: hue's value -> how it is written, where the usual name is not meant.
        colours: hue's value -> colour. A number: colours go from dark (0) to as light as this (1).
        markers: value -> marker, or the one marker of all.
        dashed: whether lines are dashed, or the values of hue whose lines are.
        size: of a mark, in points; 0: a line without marks.
        line: width of a line, in points.
        bar: width of an error bar, in points.
        cap: of an error bar, in points.
        faint: opacity of the error bars.
        alpha: opacity of marks and lines.
        write: text at each mark; it is left out where its column has no value.
        at: place of that text: in the mark, below it, on the side with most room, or all of
            them together above the panel.
    """

    x: str = ""
    y: str = ""
    ends: tuple[str, str] | None = None
    keep: dict[str, Any] = Field(default_factory=dict)
    printed: bool = False
    best: str | None = None
    over: str | None = None
    hue: Names = ("decoder",)
    marker: str | None = None
    mark: Literal["line", "point", "front"] = "point"
    order: str | None = None
    dodge: float | None = None
    label: str | None = None
    shape: str = ""
    names: dict[str, str] = Field(default_factory=dict)
    colours: dict[str, str] | float = Field(default_factory=dict)
    markers: dict[str, str] | str = Field(default_factory=dict)
    dashed: bool | Names = False
    size: float = 4.0
    line: float = 1.2
    bar: float = 0.6
    cap: float = 0.0
    faint: float | None = None
    alpha: float | None = None
    write: str = ""
    at: Literal["inside", "below", "beside", "above"] = "beside"

    @field_validator("hue", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Panel(Layer):
    """A panel.

    Attributes:
        title: above it; where the figure has a ``side``, above the top panels only.
        legend: whether the panel has a legend.
        guide: a grey line at this height; ``diagonal``: where both columns are equal.
        band: the column's interval of the decoder that ``over`` names, as a grey band.
        empty: the text where nothing is drawn; by default why it was not measured.
        layers: the keys of each layer that differ; none: the panel is one layer. A row of panels
            without anything of the first one is left out.
    """

    title: str = ""
    legend: bool = False
    guide: float | Literal["diagonal"] | None = None
    band: bool = False
    empty: str = ""
    layers: tuple[dict[str, Any], ...] = ({},)

    @cached_property
    def drawn(self) -> tuple[Layer, ...]:
        """Its layers, bottom to top."""
        return tuple(_inherit(Layer, self, layer) for layer in self.layers)


class Drawing(Panel):
    """A figure.

    Attributes:
        source: function of the paper's code that gives the rows; "": measured cells.
        drawer: function of the paper's code that draws the figure in place of panels.
        files: columns; every combination of their values is a file.
        down: column whose values are rows of panels; ``cell.group``: cells that may be compared.
        across: columns whose combinations are columns of panels.
        rows: the keys of each row of panels.
        columns: the keys of each column of panels.
        wrap: this many panels stand side by side at most, the next ones below; for one row only.
        share: axes with common limits, which are labelled at the edge of the figure only.
        side: text left of each row of panels, in place of the vertical axis's label.
        axes: column -> how it is shown.
        needs: column -> how many different values a file must have.
        paths_as_rows: whether cells without tree attention are drawn, too.
        width: of the figure, in widths of a page; a list: by the number of columns.
        height: of a row of panels, in inches.
        rest: height of all else, in inches.
        heading: above the panels.
        heading_size: in points.
        legend_columns: of the figure's legend; a list: by the number of columns of panels.
        legend_size: of the panels' legends, in points.
        note: below the panels. ``{jobs}``: decoders measured in another job.
        note_printed: added where printed numbers are drawn.
    """

    source: str = ""
    drawer: str = ""
    files: Names = ("pair",)
    down: str | None = None
    across: Names = ()
    rows: tuple[dict[str, Any], ...] = ({},)
    columns: tuple[dict[str, Any], ...] = ({},)
    wrap: int | None = None
    share: Literal["", "x", "y", "xy"] = ""
    side: str = ""
    axes: dict[str, Axis] = Field(default_factory=dict)
    needs: dict[str, int] = Field(default_factory=dict)
    paths_as_rows: bool = False
    width: tuple[float, ...] = (1.0,)
    height: float = 2.4
    rest: float = 0.9
    heading: str = "{pair}"
    heading_size: float = 8
    legend_columns: tuple[int, ...] = (4,)
    legend_size: float | None = None
    note: str = "Bars: 95% intervals over prompts."
    note_printed: str = ""

    @field_validator("across", "files", "width", "legend_columns", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | int | float) else value

    @model_validator(mode="before")
    @classmethod
    def _columns_of_panels(cls, value: Any) -> Any:
        """A list of columns for x or y is a column of panels each."""
        for name in ("x", "y"):
            if isinstance(value, dict) and isinstance(value.get(name), list):
                if "columns" in value:
                    raise ValueError(f"columns and a list for {name} exclude each other")
                several = value[name]
                value = {**value, name: several[0], "columns": [{name: one} for one in several]}
        return value

    @model_validator(mode="after")
    def _panels_are_complete(self) -> Self:
        """Each panel and layer is checked as soon as the file is read."""
        if self.wrap and (self.down or len(self.rows) > 1):
            raise ValueError("wrap is for figures with one row of panels")
        places = product(range(len(self.rows)), range(len(self.columns)))
        for place in () if self.drawer else places:
            for layer in self.panel(*place).drawn:
                if not layer.x or not layer.y:
                    raise ValueError("a panel needs a column for x and one for y")
        return self

    def panel(self, row: int, column: int) -> Panel:
        """The panel in one of ``rows`` and one of ``columns``, with the figure's keys."""
        return _inherit(Panel, self, _over(self.rows[row], self.columns[column]))

    def axis(self, column: str, asked: str = "") -> Axis:
        """The axis of a column, with its label and direction filled in."""
        given = self.axes.get(column) or self.axes.get(asked) or Axis()
        known = next((each for each in COLUMNS if each.name == column), None)
        title, better = (known.title, known.better) if known else (column.rpartition(".")[2], None)
        if known and "/" in known.unit and known.unit not in title:
            title = f"{title} ({known.unit})"
        label = title if given.label is None else given.label
        filled = {"label": label, "better": given.better or better or "up"}
        return given.model_copy(update=filled)


_Part = TypeVar("_Part", bound=Layer)


def drawing_of(item: Figure) -> Drawing | None:
    """A figure's drawing; None where its paper's file has none.

    Raises:
        ValueError: a key is unknown or a value wrong; the message names it.
    """
    if not item.drawing:
        return None
    drawing = check(Drawing, item.drawing, "drawing", f"figure {item.name}")
    for key, name in (("source", drawing.source), ("drawer", drawing.drawer)):
        if name:
            form_of(load_paper(item.paper).folder, name, f"figure {item.name}: drawing.{key}")
    return drawing


def _inherit(kind: type[_Part], above: Layer, changes: Mapping[str, Any]) -> _Part:
    """A panel of a figure, or a layer of a panel: keys from above it, and its changes."""
    base = {key: getattr(above, key) for key in above.model_fields_set if key in kind.model_fields}
    return check(kind, _over(base, changes), "drawing")


def _over(above: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping over another; both of their ``keep`` hold."""
    keep = {**above.get("keep", {}), **changes.get("keep", {})}
    return {**above, **changes, **({"keep": keep} if keep else {})}


def by_columns(values: Sequence[float], columns: int) -> float:
    """The value for so many columns of panels; the last holds for more."""
    return values[min(columns, len(values)) - 1]
