"""How a figure is described: a few keys draw any measured cells, a wrong one is named."""

import pytest

from spec_bench.report.figures import figure_sheets
from spec_bench.report.figures.draw import draw_sheet
from spec_bench.report.figures.panels import drawing_of
from spec_bench.report.figures.sweep import layout_of
from spec_bench.report.figures.texts import fill
from spec_bench.report.papers.claim import code_of
from spec_bench.report.papers.paper import find_figure, load_paper
from tests.report.drawn import points, sheet_from
from tests.report.rows import frame, row

CELLS = frame(
    *(
        row(
            decoder, spec, task=task, nodes_per_call=nodes, block_efficiency=(tau, tau - 1, tau + 1)
        )
        for task in ("xsum", "dolly")
        for decoder, spec, nodes, tau in (
            ("ar", "-", 0.0, 1.0),
            ("sd", "3", 3.0, 2.0),
            ("rsd_s", "4x3", 12.0, 3.0),
            ("rsd_s", "2x2", 4.0, 2.5),
        )
    )
)
SMALLEST = {"x": "nodes_per_call", "y": "block_efficiency", "across": "task"}


def test_two_columns_are_a_figure_with_a_colour_per_decoder_and_a_panel_per_task():
    sheet = sheet_from(CELLS, **SMALLEST, title="{task}")
    ((xsum, dolly),) = sheet.grid
    assert (xsum.title, dolly.title) == ("XSum", "Dolly")
    assert [series.label for series in xsum.series] == ["AR", "SD", "RSD-S"]
    assert points(xsum.series[2]) == [(12.0, 3.0), (4.0, 2.5)]
    assert xsum.series[2].points("block_efficiency")[0] == (3.0, 2.0, 4.0)
    figure = draw_sheet(sheet)
    assert [axes.get_xlabel() for axes in figure.axes] == ["nodes", "nodes"]
    assert figure.axes[0].get_ylabel() == "block efficiency (tokens/call)"


def test_a_line_goes_along_x_and_cells_of_other_settings_are_lines_of_their_own():
    (panel,) = sheet_from(CELLS, **{**SMALLEST, "across": []}, mark="line").panels
    (series,) = (each for each in panel.series if each.label == "RSD-S")
    assert [points(line) for line in series.lines()] == [[(4.0, 2.5), (12.0, 3.0)]] * 2


def test_a_list_of_columns_is_a_panel_each():
    drawing = {"x": "nodes_per_call", "y": ["block_efficiency", "nodes_per_call"]}
    assert [panel.panel.y for panel in sheet_from(CELLS, **drawing).panels] == drawing["y"]


def test_what_is_said_of_the_figure_holds_for_its_layers_unless_they_say_otherwise():
    drawing = drawing_of(
        **SMALLEST,
        markersize=3,
        keep={"task": "xsum"},
        layers=[{"keep": {"decoder": "sd"}}, {"markersize": 5, "mark": "line"}],
    )
    first, second = drawing.panel(0, 0).drawn
    told = (first.markersize, first.mark, first.keep)
    assert told == (3, "point", {"task": "xsum", "decoder": "sd"})
    assert (second.markersize, second.mark, second.keep) == (5, "line", {"task": "xsum"})


def test_a_number_is_drawn_relative_to_a_decoder_of_the_same_panel():
    panel = sheet_from(CELLS, **SMALLEST, over="sd").panels[0]
    assert [y for series in panel.series for _, y in points(series)] == [0.5, 1.0, 1.5, 1.25]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"colour": "red"}, "a drawing has no 'colour', but x, y"),
        ({"mark": "cloud"}, "mark must be one of line, point, front, got 'cloud'"),
        ({"layers": [{"sise": 3}]}, "a layer has no 'sise'"),
        ({"columns": [{"y": "mbsu"}], "x": ["mbsu", "speedup"]}, "exclude each other"),
        ({"wrap": 2, "down": "seed"}, "wrap"),
        ({"x": ""}, "a column for x and one for y"),
    ],
)
def test_what_a_figure_cannot_be_is_one_line_that_names_it(said, named, monkeypatch):
    own = code_of(load_paper("mcsd").folder, "figures")
    monkeypatch.setattr(own, "figure_3", lambda cells: [drawing_of(**{**SMALLEST, **said})])
    with pytest.raises(ValueError, match=f"^figure mcsd/3: .*{named}.*$"):
        figure_sheets(find_figure("mcsd/3"), CELLS)


def test_texts_name_columns_of_the_rows():
    assert fill("{task}, temperature {temperature:g}", CELLS[:2]) == "XSum, temperature 0.3"
    assert fill("{decoder} {spec}", CELLS[1:2]) == "SD 3"
    assert fill("{decoder} {spec}", CELLS[2:4]) == "RSD-S"
    assert fill("{decoders}", CELLS) == "AR, SD, RSD-S"
    assert fill("{prompts:prompt}", CELLS) == "30 prompts"
    assert fill("{seed:seed}", CELLS.assign(seed=1)) == "1 seed"


@pytest.mark.parametrize(("longest", "within"), [(12, True), (70, False)])
def test_titles_of_a_sweep_that_a_panel_has_no_room_for_stand_above_all_panels(longest, within):
    drawing = layout_of(3, 4, longest)
    assert drawing["legend"] is within
    assert (drawing["rest"] > 0) is not within
