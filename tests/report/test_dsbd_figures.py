"""DSBD's figures: what is in them, what stands in a panel without numbers."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd
import pytest

from spec_bench.report.beams import DraftBeams, draft_beams
from spec_bench.report.figures import FIGURES, draw
from spec_bench.report.figures.beam_effects import by_value
from spec_bench.report.figures.fronts import across_jobs
from spec_bench.report.figures.style import marks, pyplot
from spec_bench.report.figures.trade_off import (
    ENERGY,
    SPEED,
    Quantity,
    beam_curve,
    draw_front,
    groups_by_pair,
    points,
    scatter,
    score_of,
    without,
)
from spec_bench.report.load import groups_of
from spec_bench.report.page.pictures import drawings
from spec_bench.report.papers.index import find_item, load_paper
from spec_bench.report.papers.measured import Measured
from tests.report.dsbd_rows import cell, fronts

matplotlib.use("Agg")
SCORE = Quantity("exact_match", "exact match", higher=True)


def figure(number: int):
    return find_item("figure", f"dsbd/{number}")


@pytest.mark.parametrize("number", FIGURES["dsbd"])
def test_each_figure_becomes_a_png_and_a_pdf_named_after_the_pair(
    number: str, tmp_path: Path
) -> None:
    png, pdf = draw("dsbd", number, fronts(), tmp_path)
    assert [path.name for path in (png, pdf)] == [
        f"dsbd-fig{number}-embedded.{suffix}" for suffix in ("png", "pdf")
    ]
    assert png.read_bytes().startswith(b"\x89PNG")


def test_settings_are_read_from_their_shorthand() -> None:
    assert draft_beams("4x2@0.9") == DraftBeams(width=4, depth=2, threshold=0.9)
    with pytest.raises(ValueError, match=r"no setting '4x2'.*4x2@0\.9"):
        draft_beams("4x2")


def test_the_front_is_drawn_as_steps_that_promise_no_more_than_was_had() -> None:
    (group,) = groups_of(fronts())
    _, plot = pyplot.subplots()
    chosen = draw_front(plot, points(group, "dsbd", SPEED, SCORE), SPEED, SCORE)
    assert [row.spec for row in chosen] == ["4x2@0.7", "4x2@0.9", "3x2@0.9"]
    (line,) = plot.lines
    assert line.get_drawstyle() == "steps-pre"  # between two speeds the faster one's score
    assert list(line.get_xdata()) == [24.0, 30.0, 36.0]
    assert list(line.get_ydata()) == [0.72, 0.70, 0.64]


def test_beam_sampling_is_a_curve_in_the_order_of_its_width() -> None:
    (group,) = groups_of(fronts().iloc[::-1])
    _, plot = pyplot.subplots()
    beam_curve(plot, group, SPEED, SCORE)
    assert list(plot.lines[0].get_xdata()) == [30.0, 20.0, 10.0]
    assert [text.get_text() for text in plot.texts] == ["1", "2", "3"]


def test_marks_bear_the_intervals_of_both_numbers() -> None:
    (group,) = groups_of(fronts())
    _, plot = pyplot.subplots()
    scatter(plot, points(group, "sd", SPEED, SCORE), SPEED, SCORE, fmt="o")
    horizontal, vertical = (bars.get_segments()[0] for bars in plot.containers[0][2])
    assert horizontal[:, 0].tolist() == [49.0, 51.0]
    assert vertical[:, 1].tolist() == pytest.approx([0.47, 0.53])


def test_a_panel_without_a_meter_says_why() -> None:
    (group,) = groups_of(fronts())
    _, plot = pyplot.subplots()
    assert without(plot, group, ENERGY)
    assert "measured: no meter" in plot.texts[0].get_text()
    assert "energy=nvml" in plot.texts[0].get_text()
    assert not without(plot, group, SPEED)
    (metered,) = groups_of(fronts(energy_j_per_token=(2.0, 1.5, 2.5)))
    assert not without(plot, metered, ENERGY)


def test_a_pair_of_the_paper_has_the_figures_tasks_and_another_pair_all() -> None:
    spider = fronts(task="spider").rename(
        columns=lambda name: name.replace("exact_match", "execution_accuracy")
    )
    both = pd.concat([fronts(), spider], ignore_index=True)
    assert [g.title for g in groups_by_pair(figure(4), both)["embedded"]] == ["squad", "spider"]
    own = both.assign(pair="llama2_13b_68m")
    assert [g.title for g in groups_by_pair(figure(4), own)["llama2_13b_68m"]] == ["squad"]
    (group,) = groups_by_pair(figure(5), own)["llama2_13b_68m"]
    score = score_of(figure(5), group)
    assert score is not None
    assert (score.column, score.higher) == ("execution_accuracy", True)


def test_figure_6_is_drawn_from_perplexity_where_less_is_better() -> None:
    (group,) = groups_of(fronts())
    score = score_of(figure(6), group)
    assert score is not None
    assert (score.column, score.higher) == ("perplexity", False)
    _, plot = pyplot.subplots()
    chosen = draw_front(plot, points(group, "dsbd", SPEED, score), SPEED, score)
    assert [row.spec for row in chosen] == ["4x2@0.7", "4x2@0.9", "3x2@0.9"]


def test_settings_are_told_apart_by_threshold_and_by_width() -> None:
    rows = points(groups_of(fronts())[0], "dsbd", SPEED)
    by_t = {value: list(part.spec) for value, part in by_value(rows, "threshold").items()}
    assert by_t == {0.7: ["4x2@0.7"], 0.9: ["3x2@0.9", "4x2@0.9"]}
    assert list(by_value(rows, "width")) == [3.0, 4.0]


def test_cells_of_two_jobs_are_named_below_the_fronts() -> None:
    rows = fronts()
    assert across_jobs(groups_of(rows)) == ""
    assert across_jobs(groups_of(rows.assign(baseline="same job"))) == ""
    rows["baseline"] = ["same job", "same job", *(["earlier job"] * 6)]
    assert across_jobs(groups_of(rows)) == (
        "\nNot one job: SD measured with AR, the rest in a later one."
    )


def test_without_dsbd_there_is_no_figure_and_the_message_names_the_recipe(tmp_path: Path) -> None:
    rows = fronts()
    with pytest.raises(ValueError, match=r"nothing measured for figure dsbd/4; .*dsbd=fronts"):
        draw("dsbd", "4", rows[rows.decoder != "dsbd"], tmp_path)


def test_rows_that_follow_the_law_of_beams_are_marked() -> None:
    rows = fronts()
    assert marks(rows[rows.decoder == "dsbd"]) == " (beam law)"
    assert marks(rows[rows.decoder == "sd"]) == ""


def test_another_pairs_page_has_every_figure_that_is_for_any_pair() -> None:
    paper = load_paper("dsbd")
    rows = fronts().assign(experiment="dsbd-fronts", file="results.csv")
    items = [item for item in paper.items if "dsbd-fronts" in item.experiments]
    found = drawings(paper, items, Measured(rows))
    assert [drawing.item.number for drawing in found] == [4, 6, 7, 8, 9]
    own = drawings(paper, items, Measured(rows.assign(pair="opt_13b")))
    assert [drawing.item.number for drawing in own] == [4, 6]


def test_a_simulated_cell_is_named_in_the_legend() -> None:
    assert marks(pd.DataFrame([cell("dsbd", "4x2@0.9") | {"lossless": "simulated"}])) == (
        " (simulated)"
    )
