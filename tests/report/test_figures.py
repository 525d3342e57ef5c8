"""The papers' figures: what is plotted, which rows are chosen, and what files come out."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from spec_bench.report.figures import FIGURES, draw
from spec_bench.report.figures.acceptance import curves
from spec_bench.report.figures.bernoulli import square
from spec_bench.report.figures.choose import own_pairs_first, usable
from spec_bench.report.figures.configurations import configurations
from spec_bench.report.figures.published import (
    axis_values,
    pairs_of,
    printed_mcsd,
    printed_rsd,
)
from spec_bench.report.figures.relative import (
    Point,
    baseline_band,
    best_series,
    relative_printed,
    relative_rows,
)
from spec_bench.report.figures.style import error_bars, marks
from spec_bench.report.papers.index import find_item
from tests.report.frames import frame, row

EXP1 = frame(
    row("ar", block_efficiency=1.0, mbsu=1.0, speedup=1.0, rouge2=0.5),
    row("sd", "2", block_efficiency=2.0, mbsu=1.8, speedup=1.5, rouge2=0.4),
    row("rsd_s", "2x2", block_efficiency=2.2, mbsu=2.1, speedup=1.7, rouge2=0.6),
    row("rsd_s", "3x2", block_efficiency=2.4, mbsu=2.2, speedup=1.6, rouge2=0.5),
    row("rsd_s", "4x3", block_efficiency=2.7, mbsu=2.5, speedup=1.4, rouge2=0.5),
)
FIG4, FIG5 = find_item("figure", "rsd/4"), find_item("figure", "rsd/5")


def values(points: list[Point]) -> list[tuple[int, str, float]]:
    return [(point.place, point.spec, round(point.value, 6)) for point in points]


def test_the_best_tree_is_picked_panel_by_panel() -> None:
    relative, places = relative_rows(EXP1), axis_values("draft_length")
    taus = best_series(relative, "rsd_s", "block_efficiency", places)
    speeds = best_series(relative, "rsd_s", "speedup", places)
    assert values(taus) == [(2, "3x2", 2.4), (3, "4x3", 2.7)]
    assert values(speeds) == [(2, "2x2", 1.7), (3, "4x3", 1.4)]


def test_accuracy_is_that_of_the_best_block_efficiency_and_not_the_luckiest() -> None:
    points = best_series(relative_rows(EXP1), "rsd_s", "accuracy", axis_values("draft_length"))
    assert values(points) == [(2, "3x2", 1.0), (3, "4x3", 1.0)]


def test_accuracy_is_relative_to_the_baseline_with_its_interval() -> None:
    (point,) = best_series(relative_rows(EXP1), "sd", "accuracy", axis_values("draft_length"))
    assert (point.value, point.low, point.high) == pytest.approx((0.8, 0.6, 1.0))
    assert baseline_band(EXP1) == pytest.approx((0.8, 1.2))


def test_without_a_baseline_there_is_no_accuracy() -> None:
    rows = EXP1[EXP1.decoder != "ar"]
    assert not best_series(relative_rows(rows), "sd", "accuracy", axis_values("draft_length"))
    assert baseline_band(rows) is None


def test_a_tree_belongs_to_the_experiment_that_lists_it() -> None:
    lengths, budgets = axis_values("draft_length"), axis_values("target_budget")
    assert lengths["rsd_c", "2-2"] == 2
    assert budgets["rsd_c", "2-2"] == 6
    assert budgets["sd", "30"] == 30
    assert budgets["spectr", "7x3"] == 21
    assert ("spectr", "7x3") not in lengths
    assert len(lengths) == 32
    assert len(budgets) == 40


def test_the_papers_points_are_those_of_its_table() -> None:
    rows = printed_rsd("llama2_7b", "xsum", "draft_length")
    points = best_series(relative_printed(rows), "spectr", "speedup", axis_values("draft_length"))
    assert points[0].place == 2
    assert points[0].value == pytest.approx(53.346 / 37.269)
    assert printed_rsd("embedded", "xsum", "draft_length").empty
    assert printed_mcsd("llama_13b_68m", "alpaca", 0, "acceptance_rate_k4") == 0.88
    assert printed_mcsd("embedded", "alpaca", 0, "acceptance_rate_k4") is None


def test_a_figure_shows_its_own_pairs_or_else_all() -> None:
    assert pairs_of(FIG4) == ["llama2_70b", "llama2_chat_70b"]
    both = pd.concat([EXP1, EXP1.assign(pair="llama2_70b")])
    assert set(own_pairs_first(both, pairs_of(FIG4)).pair) == {"llama2_70b"}
    assert set(own_pairs_first(EXP1, pairs_of(FIG4)).pair) == {"embedded"}


def test_a_cell_measured_twice_is_shown_once_from_its_own_experiment() -> None:
    rows = pd.concat(
        [
            frame(row("sd", "6", prompts=90)).assign(experiment="quickstart"),
            frame(row("sd", "6", prompts=30)).assign(experiment="rsd-exp2"),
            frame(row("sd", "6", prompts=20)).assign(experiment="rsd-exp2"),
            frame(row("sd", "10", prompts=20)).assign(experiment="quickstart"),
            frame(row("sd", "10", prompts=50, task="dolly")).assign(experiment="quickstart"),
        ],
        ignore_index=True,
    )
    shown = usable(rows, FIG5)
    assert list(zip(shown.task, shown.prompts, strict=True)) == [("xsum", 30), ("dolly", 50)]


def test_failed_cells_and_paths_as_rows_are_not_shown() -> None:
    rows = frame(
        row("sd", "2"),
        row("sd", "3", status="failed"),
        row("rsd_c", "2-2", tree_attention=False),
    )
    assert list(usable(rows, FIG4).spec) == ["2"]
    older = frame(row("sd", "2")).drop(columns="tree_attention")
    assert len(usable(older, FIG4)) == 1


def test_alpha_curves_have_one_level_trees_in_the_order_of_k() -> None:
    rows = frame(
        row("mcsd_wor", "16", acceptance_rate=0.9),
        row("mcsd_wor", "2", acceptance_rate=0.7),
        row("mcsd_wor", "2-2", acceptance_rate=0.7),
        row("mcsd", "4", acceptance_rate=0.7),
    )
    assert list(curves(rows).k) == [2, 16]


def test_configurations_of_two_levels_have_an_order_and_a_budget() -> None:
    specs = ("4-2", "2-4", "2-2", "4-2-1", "8")
    found = configurations(frame(*(row("mcsd_wor", spec, speedup=1.0) for spec in specs)))
    assert list(found.order) == ["decreasing", "increasing", "equal"]
    assert list(found.budget) == [8, 8, 4]


def test_error_bars_are_lengths_and_nothing_where_an_end_is_unknown() -> None:
    nan = float("nan")
    lengths = error_bars([(2.0, 1.5, 2.25), (1.0, nan, nan)])
    assert lengths == [[0.5, 0.0], [0.25, 0.0]]


def test_rows_that_are_not_exact_are_marked() -> None:
    rows = frame(row("ar"), row("sd", "2", lossless="simulated"))
    assert marks(rows) == " (simulated)"
    assert marks(EXP1) == ""


def test_a_heat_map_has_p_down_and_q_across() -> None:
    rows = frame({"p": 1.0, "q": 0.0, "otm": 0.1}, {"p": 0.0, "q": 0.0, "otm": 1.0})
    assert square(rows, "otm").to_numpy().tolist() == [[1.0], [0.1]]


def grid_rows() -> pd.DataFrame:
    rules = {"multi_round": 0.5, "k_seq": 0.6, "otm": 0.7, "recursive_rejection": 1.0}
    steps = (0.0, 0.5, 1.0)
    return frame(*({"p": p, "q": q, **rules, "otm": 1 - p * q} for p in steps for q in steps))


MCSD = frame(
    *(row("mcsd_wor", spec, acceptance_rate=0.7) for spec in ("1", "4")),
    *(row("mcsd_wor", spec, block_efficiency=2.0, speedup=1.2) for spec in ("4-2", "2-4")),
)
DRAWN = [
    ("rsd", "1", grid_rows(), "rsd-fig1"),
    ("rsd", "4", EXP1, "rsd-fig4-embedded"),
    ("mcsd", "3", MCSD, "mcsd-fig3-embedded"),
    ("mcsd", "4", MCSD, "mcsd-fig4-embedded"),
]


@pytest.mark.parametrize(("paper", "figure", "rows", "name"), DRAWN)
def test_a_figure_becomes_a_png_and_a_pdf(
    paper: str, figure: str, rows: pd.DataFrame, name: str, tmp_path: Path
) -> None:
    png, pdf = draw(paper, figure, rows, tmp_path / "new")
    assert [path.name for path in (png, pdf)] == [f"{name}.png", f"{name}.pdf"]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_a_pair_can_be_asked_for(tmp_path: Path) -> None:
    both = pd.concat([EXP1, EXP1.assign(pair="llama2_70b")])
    paths = draw("rsd", "4", both, tmp_path, pair="embedded")
    assert {path.stem for path in paths} == {"rsd-fig4-embedded"}


@pytest.mark.parametrize(
    ("paper", "figure", "message"),
    [
        ("rsd", "3", "rsd has no figure '3' to draw; it has: 1, 4, 5, 6, 7, 8, 9"),
        ("mcsd", "1", "mcsd has no figure '1' to draw; it has: 3, 4, 5"),
        ("nothing", "1", "no figures of paper 'nothing'; there are: rsd, mcsd, dsbd"),
        ("rsd", "5", "nothing measured for figure rsd/5; to measure it: .*rsd=exp2"),
        ("rsd", "1", "nothing measured for figure rsd/1; .*spec_bench.audit.bernoulli"),
        ("mcsd", "3", "nothing measured for figure mcsd/3; .*mcsd=acceptance"),
        ("mcsd", "4", "nothing measured for figure mcsd/4; .*mcsd=search"),
    ],
)
def test_what_cannot_be_drawn_is_one_clear_line(
    paper: str, figure: str, message: str, tmp_path: Path
) -> None:
    length_only = EXP1[EXP1.spec.isin(["-", "3x2", "4x3"])]
    with pytest.raises(ValueError, match=message):
        draw(paper, figure, length_only, tmp_path)
    with pytest.raises(ValueError, match=r"no figure|nothing measured"):
        draw(paper, figure, pd.DataFrame(), tmp_path)


def test_a_pair_without_rows_is_an_error_that_names_those_measured(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing measured on pair 'opt_13b'; measured: embedded"):
        draw("rsd", "4", EXP1, tmp_path, pair="opt_13b")


def test_every_figure_that_is_listed_is_one_of_the_papers() -> None:
    for paper, numbers in FIGURES.items():
        for number in numbers:
            assert find_item("figure", f"{paper}/{number}").name == f"{paper}/{number}"
