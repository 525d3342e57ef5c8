"""Figures of the paper's numbers alone, and which figures are drawn of pairs they do not have."""

import pandas as pd
import pytest

from spec_bench.report.figures import draw, figure_sheets
from spec_bench.report.figures.cells import shows_other_pairs
from spec_bench.report.papers.paper import find_figure, load_paper
from tests.report.drawn import points, series_of
from tests.report.rows import EMBEDDED, frame, row

NOTHING = pd.DataFrame()
ALPACA = {**EMBEDDED, "task": "alpaca", "temperature": 1.0}
OURS = frame(*(row("mcsd_wor", k, **ALPACA, acceptance_rate=0.5) for k in ("1", "4")))


def test_printed_numbers_are_drawn_alone_and_the_heading_says_so():
    sheets = figure_sheets(find_figure("rsd/7"), NOTHING, alone=True)
    assert len(sheets) == 6  # OPT 13B, 30B and 66B with either draft
    assert {sheet.setting for sheet in sheets} == {"paper's numbers alone"}
    first = next(sheet for sheet in sheets if sheet.text("{pair}") == "opt_13b")
    (series,) = series_of(first.grid[0][0], decoder="rsd_s")
    of_table = [
        (float(n["axis_value"]), float(n["value"]))
        for n in load_paper("rsd").numbers_of(16)
        if n["decoder"] == "rsd_s" and n["metric"] == "block_efficiency" and n["value"]
    ]
    best = {place: max(v for p, v in of_table if p == place) for place, _ in of_table}
    assert first.grid[0][0].rows.task.iloc[0] == load_paper("rsd").numbers_of(16)[0]["task"]
    assert dict(points(series)) == best
    assert not any(each.layer.printed for panel in first.panels for each in panel.series)


def test_a_figure_of_other_pairs_is_drawn_once_and_not_under_each_number(tmp_path):
    """Figure 5 of LLaMA-160M used to come out as Figure 3 of whatever was measured."""
    (theirs,) = draw("mcsd", "5", OURS, tmp_path, formats=("png",), alone=True)
    assert theirs.name == "mcsd-fig5-paper-s-numbers-alone.png"
    (asked,) = draw("mcsd", "5", OURS, tmp_path, pair="embedded", formats=("png",), alone=True)
    assert asked.name == "mcsd-fig5-embedded.png"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("rsd/4", True), ("rsd/7", False), ("rsd/5", True), ("rsd/8", False), ("mcsd/5", False),
     ("dsbd/6", True), ("dsbd/5", False), ("redrafter/3", True), ("rsd/1", True)],
)  # fmt: skip
def test_which_figures_are_for_pairs_that_they_do_not_have(name, shown):
    assert shows_other_pairs(find_figure(name)) is shown


def test_what_the_paper_prints_nowhere_is_not_drawn(tmp_path):
    with pytest.raises(ValueError, match="nothing measured for figure dsbd/4"):
        draw("dsbd", "4", NOTHING, tmp_path, alone=True)
    with pytest.raises(ValueError, match="nothing measured for figure rsd/7"):
        draw("rsd", "7", NOTHING, tmp_path)
