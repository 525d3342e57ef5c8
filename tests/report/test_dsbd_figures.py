"""DSBD's figures: what is in them, what stands in a panel without numbers."""

import pandas as pd
import pytest

from spec_bench.report.figures import draw, drawable
from spec_bench.report.figures.draw import draw_sheet
from spec_bench.report.figures.texts import jobs
from spec_bench.report.page.gather import drawings
from spec_bench.report.papers.paper import load_paper
from spec_bench.report.tables.measured import Measured
from tests.report.drawn import points, series_of, sheet_of
from tests.report.rows import dsbd_fronts
from tests.said import naming


@pytest.mark.parametrize("number", drawable("dsbd"))
def test_each_figure_becomes_a_png_and_a_pdf_named_after_the_pair(number, tmp_path):
    png, pdf = draw("dsbd", number, dsbd_fronts(), tmp_path)
    assert [path.name for path in (png, pdf)] == [
        f"dsbd-fig{number}-embedded.{suffix}" for suffix in ("png", "pdf")
    ]
    assert png.read_bytes().startswith(b"\x89PNG")


def test_the_front_is_drawn_as_steps_that_promise_no_more_than_was_had():
    sheet = sheet_of("dsbd/4", dsbd_fronts())
    (front,) = (each for each in sheet.panels[0].series if each.layer.mark == "front")
    assert list(front.rows.spec) == ["4x2@0.7", "4x2@0.9", "3x2@0.9"]
    plot = draw_sheet(sheet).axes[0]
    (line,) = (line for line in plot.lines if line.get_drawstyle() != "default")
    assert line.get_drawstyle() == "steps-pre"  # between two speeds the faster one's score
    assert list(line.get_xdata()) == [24.0, 30.0, 36.0]
    assert list(line.get_ydata()) == [0.72, 0.70, 0.64]
    assert "front: 4x2@0.7, 4x2@0.9, 3x2@0.9" in [text.get_text() for text in plot.texts]


def test_beam_sampling_is_a_curve_in_the_order_of_its_width():
    sheet = sheet_of("dsbd/4", dsbd_fronts().iloc[::-1].reset_index(drop=True))
    (curve,) = series_of(sheet.panels[0], decoder="beam_sampling")
    assert [x for x, _ in points(curve)] == [30.0, 20.0, 10.0]
    texts = [text.get_text() for text in draw_sheet(sheet).axes[0].texts]
    assert [text for text in texts if len(text) == 1] == ["1", "2", "3"]


def test_marks_bear_the_intervals_of_both_numbers():
    (series,) = series_of(sheet_of("dsbd/4", dsbd_fronts()).panels[0], decoder="sd")
    assert series.points("token_rate") == [(50.0, 49.0, 51.0)]
    assert series.points("cell.score") == [pytest.approx((0.5, 0.47, 0.53))]


def test_a_panel_without_a_meter_says_why():
    sheet = sheet_of("dsbd/4", dsbd_fronts())
    assert [bool(panel.series) for panel in sheet.panels] == [True, False]
    (text,) = draw_sheet(sheet).axes[1].texts
    assert "measured: no meter" in text.get_text()
    assert "energy=nvml" in text.get_text()
    metered = sheet_of("dsbd/4", dsbd_fronts(energy_j_per_token=(2.0, 1.5, 2.5)))
    assert all(panel.series for panel in metered.panels)


def test_a_pair_of_the_paper_has_the_figures_tasks_and_another_pair_all():
    spider = dsbd_fronts(task="spider").rename(
        columns=lambda name: name.replace("exact_match", "execution_accuracy")
    )
    both = pd.concat([dsbd_fronts(), spider], ignore_index=True)
    assert [line[0].title for line in sheet_of("dsbd/4", both).grid] == ["SQuAD", "Spider"]
    own = both.assign(pair="llama2_13b_68m")
    assert [line[0].title for line in sheet_of("dsbd/4", own).grid] == ["SQuAD"]
    ((panel, _),) = sheet_of("dsbd/5", own).grid
    assert panel.shown("cell.score") == "execution_accuracy"


def test_figure_6_is_drawn_from_perplexity_where_less_is_better():
    panel = sheet_of("dsbd/6", dsbd_fronts()).panels[0]
    assert panel.panel.y == "perplexity"
    (front,) = (each for each in panel.series if each.layer.mark == "front")
    assert list(front.rows.spec) == ["4x2@0.7", "4x2@0.9", "3x2@0.9"]


def test_settings_are_told_apart_by_threshold_and_by_width():
    def found(number):
        panel = sheet_of(f"dsbd/{number}", dsbd_fronts()).panels[0]
        marks = [each for each in panel.series if each.layer.mark == "point"]
        return {each.label: list(each.rows.spec) for each in marks}

    assert found(8) == {"t = 0.7": ["4x2@0.7"], "t = 0.9": ["3x2@0.9", "4x2@0.9"]}
    assert list(found(9)) == ["W_S = 3", "W_S = 4"]


def test_cells_of_two_jobs_are_named_below_the_fronts():
    rows = dsbd_fronts()
    assert jobs(rows) == ""
    rows["baseline"] = ["same job", "same job", *(["earlier job"] * 6)]
    assert jobs(rows[rows.decoder != "ar"]) == (
        "\nNot one job: SD measured with AR, the rest in a later one."
    )


def test_without_dsbd_there_is_no_figure_and_the_message_names_the_recipe(tmp_path):
    rows = dsbd_fronts()
    with pytest.raises(ValueError, match=naming("dsbd/4", "dsbd=fronts")):
        draw("dsbd", "4", rows[rows.decoder != "dsbd"], tmp_path)


@pytest.mark.parametrize(
    ("more", "marks"),
    [({}, ["(beam law)", "(beam law)", ""]), ({"lossless": "simulated"}, ["(simulated)"] * 3)],
)
def test_rows_that_are_not_exact_are_marked_in_the_legend(more, marks):
    (legend,) = draw_sheet(sheet_of("dsbd/4", dsbd_fronts(**more))).legends
    labels = [text.get_text() for text in legend.get_texts()]
    names = ("DSBD", "beam sampling", "SD 3")
    assert labels == [f"{name} {mark}".strip() for name, mark in zip(names, marks, strict=True)]


def test_another_pairs_page_has_every_figure_that_is_for_any_pair():
    paper = load_paper("dsbd")
    rows = dsbd_fronts().assign(experiment="dsbd-fronts", file="results.csv")
    items = [item for item in paper.items if "dsbd-fronts" in item.experiments]
    found = drawings(paper, items, Measured(rows))
    assert [drawing.item.number for drawing in found] == [4, 6, 7, 8, 9]
    own = drawings(paper, items, Measured(rows.assign(pair="opt_13b")))
    assert [drawing.item.number for drawing in own] == [4, 6]
