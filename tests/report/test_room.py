"""What is written in a figure has room there: notes, texts at marks; and legends are in order."""

from __future__ import annotations

from typing import Any

from spec_bench.report.figures.panels import draw_sheet
from spec_bench.report.figures.style import pyplot
from tests.report.drawn import sheet_from
from tests.report.rows import frame, row

TAUS = {"sd": 2.0, "rsd_c": 2.5, "rsd_s": 5.0}
CELLS = frame(
    *(row(name, "10x8@59", block_efficiency=tau, speedup=1.1) for name, tau in TAUS.items())
)
FRONT = {"x": "block_efficiency", "y": "speedup", "width": 0.5}


def drawn(**said: Any) -> Any:
    figure = draw_sheet(sheet_from(CELLS, **{**FRONT, **said}))
    figure.draw_without_rendering()
    pyplot.close(figure)
    return figure


def test_a_long_note_goes_on_in_a_second_line() -> None:
    figure = drawn(
        note="Bars are 95% intervals over prompts, and long ones leave their panel. " * 2
    )
    (note,) = (text for text in figure.texts if "Bars" in text.get_text())
    box = note.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert box.y0 >= 0


def test_a_text_beside_the_last_mark_stays_in_its_panel() -> None:
    (axes,) = drawn(write="{spec}").axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(CELLS)
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)


def test_a_legend_lists_the_series_of_one_row_of_panels_after_those_of_another() -> None:
    rows = [{"keep": {"decoder": ["rsd_s", "sd"]}}, {"keep": {"decoder": ["rsd_c"]}}]
    (legend,) = drawn(rows=rows).legends
    assert [text.get_text() for text in legend.get_texts()] == ["RSD-S", "SD", "RSD-C"]


def test_an_axis_of_a_rate_has_its_unit() -> None:
    (axes,) = drawn().axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("block efficiency (tokens/call)", "speedup")
