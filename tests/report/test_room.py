"""What is written in a figure has room there: notes, texts at marks; and legends are in order."""

import pytest

from spec_bench.report.figures.draw import draw_sheet
from spec_bench.report.figures.style import pyplot, settings
from tests.report.drawn import committed_sheets, sheet_from
from tests.report.rows import frame, row

TAUS = {"sd": 2.0, "rsd_c": 2.5, "rsd_s": 5.0}
CELLS = frame(
    *(row(name, "10x8@59", block_efficiency=tau, speedup=1.1) for name, tau in TAUS.items())
)
FRONT = {"x": "block_efficiency", "y": "speedup", "width": 0.5}


def drawn(**said):
    figure = draw_sheet(sheet_from(CELLS, **{**FRONT, **said}))
    figure.draw_without_rendering()
    pyplot.close(figure)
    return figure


def test_a_long_note_goes_on_in_a_second_line():
    figure = drawn(
        note="Bars are 95% intervals over prompts, and long ones leave their panel. " * 2
    )
    (note,) = (text for text in figure.texts if "Bars" in text.get_text())
    box = note.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert box.y0 >= 0


def test_a_text_beside_the_last_mark_stays_in_its_panel():
    (axes,) = drawn(write="{spec}").axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(CELLS)
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)


def test_a_legend_lists_the_series_of_one_row_of_panels_after_those_of_another():
    rows = [{"keep": {"decoder": ["rsd_s", "sd"]}}, {"keep": {"decoder": ["rsd_c"]}}]
    (legend,) = drawn(rows=rows).legends
    assert [text.get_text() for text in legend.get_texts()] == ["RSD-S", "SD", "RSD-C"]


@pytest.mark.parametrize(
    "experiment",
    ["eagle-heads", "dsbd-fronts", "redrafter-batches", "beyond-draft-free", "rsd-exp1"],
)
def test_no_text_and_no_legend_of_a_committed_figure_leaves_its_canvas(experiment):
    for name, sheet in committed_sheets(experiment).items():
        with settings():
            figure = draw_sheet(sheet)
            figure.draw_without_rendering()
        plots = [plot for plot in figure.axes if plot.axison]
        words = [
            each for plot in plots for each in (plot.title, plot.xaxis.label, plot.yaxis.label)
        ]
        words += [*figure.texts, *(each for plot in figure.axes for each in plot.texts)]
        written = [each for each in words if each.get_text()]
        boxes = [each.get_window_extent() for each in (*figure.legends, *written)]
        whole = figure.bbox.padded(2)  # pixels, for rounding
        assert len(boxes) > 2
        assert [box for box in boxes if not (whole.x0 <= box.x0 and box.x1 <= whole.x1)] == [], name
        assert [box for box in boxes if not (whole.y0 <= box.y0 and box.y1 <= whole.y1)] == [], name
        pyplot.close(figure)


def test_a_legend_that_is_too_wide_has_fewer_columns():
    names = {name: f"a decoder with a long name: {name}" for name in TAUS}
    (legend,) = drawn(label="{decoder}", names=names, legend_columns=3).legends
    assert len(legend.get_texts()) == 3
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= legend.figure.bbox.x1


def test_an_axis_of_a_rate_has_its_unit():
    (axes,) = drawn().axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("block efficiency (tokens/call)", "speedup")
